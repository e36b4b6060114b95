"""`gm.dump_recipe`: a recipe as YAML, in the shortest form that loads to an equal recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from gristmill.core.errors import UsageError
from gristmill.core.recipe import PythonRecords, recipe_to_data
from gristmill.recipe.yaml_tree import add_number_forms
from gristmill.runtime.functions import Function

if TYPE_CHECKING:
    from gristmill.core.recipe import Recipe


class _Dumper(yaml.SafeDumper):
    # Without aliases: a list that two steps share is written twice, as a person would.
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds line breaks in plain and single-quoted text, and cannot load those beyond ASCII again.
    style = '"' if any(character in text for character in "\r\n\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
add_number_forms(_Dumper)  # so that the text "5e-3" is quoted, which PyYAML does not treat as a number


def dump_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML text. Relative paths stay relative, so save it in the recipe's folder.

    Raises `UsageError` if the recipe holds records or functions that exist only in Python.

    >>> from gristmill.recipe.load import parse_recipe
    >>> recipe = parse_recipe("{output: out, sources: {web: {read: a.jsonl}}, steps: [{length: {}}]}")
    >>> print(dump_recipe(recipe), end="")
    output: out
    sources:
      web:
        read: a.jsonl
    steps:
    - length
    """
    data = _to_plain_data(recipe_to_data(recipe))
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)


def _to_plain_data(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _to_plain_data(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_to_plain_data(value) for value in data]
    if isinstance(data, PythonRecords):
        raise UsageError(
            f"{data} is a Python object, which a recipe file cannot hold",
            help="write the records to a file and put its path in read",
        )
    if isinstance(data, Function) and data.path is None:
        raise UsageError(
            f"{data.name} is a Python object, which a recipe file cannot hold",
            help="put the function in a file and pass call='functions.py:my_function'",
        )
    return str(data) if isinstance(data, Function) else data
