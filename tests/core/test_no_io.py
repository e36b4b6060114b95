"""The core does no I/O: no module for it is imported (a contract in pyproject.toml), and no builtin is called for it.

`os` is allowed for names of paths only: `os.fspath`, and the functions of `os.path` that do not look at the disk.
"""

import ast
from pathlib import Path

import pytest

import gristmill.core

FOLDER = Path(gristmill.core.__file__).parent
ALLOWED = {"os.PathLike", "os.fspath", "os.path.abspath", "os.path.join"}
CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


def find_violations(source):
    tree = ast.parse(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "os":
            name = node
            while isinstance(parents[name], ast.Attribute):
                name = parents[name]
            if ast.unparse(name) not in ALLOWED:
                yield ast.unparse(name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "os":
            yield f"from {node.module} import"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.func.id


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_no_io(path):
    assert list(find_violations(path.read_text())) == []


@pytest.mark.parametrize(
    "source", ["import os\nos.stat(x)", "open(x)", "from os import stat", "import os\nos.path.exists(x)"]
)
def test_violations_are_seen(source):
    assert list(find_violations(source))
