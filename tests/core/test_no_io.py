"""The core does no I/O: it imports no module for it (a contract in pyproject.toml), and calls nothing for it.

The contract sees whole packages only, so this test looks at what `os`, `sys`, NumPy and pyarrow are used for. `os` is
allowed for names of paths: `os.fspath`, and the functions of `os.path` that do not look at the disk.
"""

import ast
from pathlib import Path

import pytest

import gristmill.core

FOLDER = Path(gristmill.core.__file__).parent
ALLOWED_OS = {"os.PathLike", "os.fspath", "os.path.abspath", "os.path.join"}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    *("sys.stdin", "sys.stdout", "sys.stderr", "sys.path", "sys.modules", "sys.meta_path"),
    *("np.fromfile", "np.genfromtxt", "np.load", "np.loadtxt", "np.memmap", "np.save", "np.savez"),
    *("pa.OSFile", "pa.input_stream", "pa.memory_map", "pa.output_stream"),
}
FORBIDDEN_MODULES = {
    f"pyarrow.{name}" for name in ("csv", "dataset", "feather", "flight", "fs", "json", "orc", "parquet")
}


def find_violations(source):
    tree = ast.parse(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            whole = node
            while isinstance(parents[whole], ast.Attribute):
                whole = parents[whole]
            name = ast.unparse(whole)
            if (node.id == "os" and name not in ALLOWED_OS) or ".".join(name.split(".")[:2]) in FORBIDDEN_ATTRIBUTES:
                yield name
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from names & FORBIDDEN_MODULES
            if (node.module or "").split(".")[0] in ("os", "sys"):
                yield f"from {node.module} import"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            yield node.func.id


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_no_io(path):
    assert list(find_violations(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.stat(x)",
        "open(x)",
        "from os import stat",
        "import os\nos.path.exists(x)",
        "import sys\nsys.stderr.write(x)",
        "import numpy as np\nnp.load(x)",
        "import pyarrow as pa\npa.memory_map(x)",
        "import pyarrow.parquet as pq",
        "from pyarrow import fs",
        "from pyarrow.csv import read_csv",
    ],
)
def test_violations_are_seen(source):
    assert list(find_violations(source))
