"""One class name, one class: a name that is searched for leads to one place."""

import ast
from collections import defaultdict
from pathlib import Path

import gristmill

SOURCES = Path(gristmill.__file__).parent


def test_no_class_name_is_defined_twice():
    homes = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
