"""Benchmarks and examples import names that exist. No type checker reads them, and most run for minutes."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py"), *ROOT.glob("examples/chat_finetune/*.py")]
)


def _imports_of_ours(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "gristmill":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.partition(".")[0] == "gristmill")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "from gristmill" in node.value:
            yield from _imports_in_text(node.value)


def _imports_in_text(text):
    """Scripts inside of scripts, which run in fresh processes; other texts are no Python."""
    try:
        ast.parse(text)
    except SyntaxError:
        return
    yield from _imports_of_ours(text)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_can_be_imported(script):
    for module, name in _imports_of_ours(script.read_text()):
        imported = import_module(module)
        if name is not None and not hasattr(imported, name):
            import_module(f"{module}.{name}")
