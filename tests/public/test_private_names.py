"""The library uses no private names of its dependencies: they may change with any release of theirs."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gristmill

PACKAGE = Path(gristmill.__file__).parent
KNOWN = {
    "_cache", "_dispatcher", "_final_module", "_get_compiled_object", "_iterable", "_rebuild", "_reduce",
    "_wrap_function", "PR_SET_CHILD_SUBREAPER",
}  # fmt: skip
"""Names of numba, pyarrow, jinja2 and the kernel that were used once, on objects whose origin no syntax tree shows."""
OF_TUPLES = {"_asdict", "_fields", "_replace"}
EXCEPTIONS = {
    # Jinja's loop variable has no public name for what it iterates over. If it changes, a template is not traced.
    ("text/chats/tracing/environment.py", "_iterable"),
    # A Trainer has no public hook around an epoch. The module checks at its import that these are there.
    ("stream/trainers/transformers.py", "_init_training_state"),
    ("stream/trainers/transformers.py", "_prepare_input"),
    ("stream/trainers/transformers.py", "_run_epoch"),
    # Only with this class does a DataLoader raise an error of the process that iterates it.
}


def find_private_names(code: str, own: Counter[str] | None = None) -> Iterator[str]:
    """Find private names of third-party packages in a module; `own` counts those that its own package defines.

    An attribute is one if its object begins with a name that is imported from a package, if it is asked of `super()`
    and defined only there, or if no code of ours defines it.
    """
    tree = ast.parse(code)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        for path, name in modules:
            top, *parts = path.split(".")
            imported[name] = is_foreign = top not in sys.stdlib_module_names and top != "gristmill"
            yield from (part for part in parts if is_foreign and is_private(part))
    own = own if own is not None else list_definitions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_private(node.attr):
            root = find_root(node.value)
            num_needed = 2 if root == "super" else 1
            if imported.get(root, own[node.attr] < num_needed and node.attr not in OF_TUPLES):
                yield node.attr
        if isinstance(node, ast.Attribute) and node.attr in KNOWN and find_root(node.value) not in ("self", "cls"):
            yield node.attr


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def find_root(node: ast.expr) -> str:
    """Return the name with which an expression begins: `pa` of `pa.lib.schema([]).names[0]`."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Await(value=inner):
                node = inner
            case ast.Call(func=inner):
                node = inner
            case _:
                return ""
    return node.id


def list_definitions(*trees: ast.Module) -> Counter[str]:
    """Count how often modules define each private name."""
    names: Counter[str] = Counter()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names[node.name] += 1
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names[node.attr] += 1
            elif isinstance(node, (ast.Name)) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
    return names


@cache
def list_sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_private_name_of_a_dependency_is_used():
    sources = list_sources()
    own = list_definitions(*map(ast.parse, sources.values()))
    used = {(path, name) for path, code in sources.items() for name in find_private_names(code, own)}
    assert used == EXCEPTIONS


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import numba\nnumba.njit(f)._cache = 1", ["_cache"]),
        ("import pyarrow._compute as core\ncore.function_registry", ["_compute"]),
        ("import pyarrow as pa\npa.lib._pandas_api.have_pandas", ["_pandas_api"]),
        ("from torch._utils import ExceptionWrapper", ["_utils"]),
        ("from numba.core.compiler import CompileResult\nCompileResult._rebuild(1)", ["_rebuild", "_rebuild"]),
        ("def f(compiled):\n    return compiled.library._final_module", ["_final_module", "_final_module"]),
        ("def f(other):\n    return other._unheard_of", ["_unheard_of"]),
        ("class A:\n    def _own(self):\n        return self._own()\n\ndef f(a):\n    return a._own()", []),
        ("class A(B):\n    def _run(self):\n        return super()._run()", ["_run"]),
        ("import os, sys\nos._exit(sys._getframe().f_lineno)", []),
        ("def f(record):\n    return record._replace(a=1)", []),
    ],
)
def test_private_names_are_found(code, names):
    assert sorted(find_private_names(code)) == sorted(names)
