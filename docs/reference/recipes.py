"""Write recipes.md, next to this file, from the structs of recipes, sources and steps: `make reference`.

A key's type and default come from its field, its meaning from the field's docstring, a section from the docstring of
its class without the examples. Thresholds of filters take their meaning from the registry of scores.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, Union

import msgspec

from gristmill import Recipe, steps
from gristmill.core.recipe import RunSettings
from gristmill.recipe.load import STEPS, step_class
from gristmill.text.quality.counting import SCORES

PAGE = Path(__file__).with_name("recipes.md")
INTRODUCTION = """\
# Recipes

Every key of a recipe, and every step. This page is generated from the code by `make reference`.
[Writing recipes](writing-recipes.md) explains how the parts work together, with examples.
"""
STEPS_INTRODUCTION = """\
## Steps

A step without parameters is written as its name (`- shuffle`). In Python each step is a class of `gristmill.steps`:
`- map_batches` is `steps.MapBatches`.

Filters by [scores](quality.md) drop a document for the first rule that it breaks, in the order of the table. The books
count every broken rule as `failed:…`. `null` switches a rule off. A value equal to the threshold is kept. A document
without words is dropped as `empty`.
"""
_FAMILIES = """
length filter map map_batches gopher_quality gopher_repetition fineweb code repetition scores c4 language toxicity html
quality_model normalize pii url images sample limit shuffle mix decontaminate deduplicate split select rename render
tokenize pack write
"""
ORDER = _FAMILIES.split()
"""Steps of one record first, then what needs all records, then what makes the output; steps that are new come last."""
SHORT_NAMES = {int: "integer", float: "number", str: "text", bool: "boolean"}


def make_page() -> str:
    """Return the whole page."""
    sections = [INTRODUCTION, f"## Keys of a recipe\n\n{_make_table(Recipe)}"]
    sections += [_make_section("run", RunSettings)]
    sections += [f"## Keys of a source\n\n{_make_table(steps.Read)}\n\n{SOURCE_STEPS}", STEPS_INTRODUCTION]
    sections += [
        _make_section(name, step_class(name))
        for name in sorted(STEPS, key=lambda name: (name not in ORDER, [*ORDER, name].index(name)))
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


SOURCE_STEPS = """\
A source has one more key, `steps`: steps for its records only, before the common steps. Any step but `write` can be one
of them."""


def _make_section(name: str, step: type[Any]) -> str:
    paragraphs = inspect.cleandoc(step.__doc__ or "").split("\n\n")
    prose = "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith(">>>"))
    return f"### {name}\n\n{prose}\n\n{_make_table(step)}"


def _make_table(struct: type[Any]) -> str:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    meanings = _find_meanings(struct)
    rows = []
    for name in meanings:
        field, (least_or_most, _, score) = fields[name], name.partition("_")
        key, meaning = f"`{field.encode_name}`", meanings[name]
        if not meaning and score in SCORES:
            if struct is steps.Scores:
                # Both thresholds of a score are off by default, and have one row.
                if least_or_most == "max":
                    continue
                key = f"`min_{score}`, `max_{score}`"
            meaning = SCORES[score].definition
        cells = (key, describe_type(field.type), _describe_default(field), meaning.replace("None:", "null:"))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _find_meanings(struct: type[Any]) -> dict[str, str]:
    """Return the docstring of each field on one line, empty without one; the fields of the class itself come first."""
    meanings: dict[str, str] = {}
    for base in struct.__mro__:
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        [node] = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for position, statement in enumerate(node.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                following = takewhile(lambda node: isinstance(node, ast.Expr), node.body[position + 1 :])
                text = next((ast.literal_eval(line.value) for line in following if isinstance(line, ast.Expr)), "")
                if statement.target.id in struct.__struct_fields__:
                    meanings.setdefault(statement.target.id, " ".join(text.split()))
    return meanings


def describe_type(type_: Any) -> str:
    """Return a type in the words of YAML: choices are listed, null is left out."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin in (Union, types.UnionType):
        words = [describe_type(argument) for argument in arguments if argument is not type(None)]
        return " or ".join(dict.fromkeys(words))
    if type_ in SHORT_NAMES:
        return SHORT_NAMES[type_]
    if origin is not None and issubclass(origin, typing.Mapping):
        return "mapping"
    if origin is not None and issubclass(origin, typing.Sequence):
        return "list"
    return "any"


def _describe_default(field: Any) -> str:
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if default is msgspec.NODEFAULT:
        return "required"
    if field.name.endswith("_bytes") and isinstance(default, int):
        return f"{default >> 20:,} MiB"
    if isinstance(default, (list, tuple)) and len(default) > 2:
        return f"{len(default)} of them"
    text = msgspec.json.encode(default).decode() if isinstance(default, str) else re.sub("['\"]", "", str(default))
    words = {"None": "null", "True": "true", "False": "false", "()": "[]", '""': "empty"}
    return words.get(text, f"`{text.strip(chr(34))}`")


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
