"""Choices of steps: fields whose type is a `Literal`."""

from typing import Literal

import pytest

from gristmill.core.errors import UsageError
from gristmill.core.step import LocalStep, check_choices
from gristmill.recipe.load import parse_recipe
from gristmill.steps import Deduplicate, Mix, Pack, Shuffle, Tokenize

RECIPE = "output: out\nsources: {web: {read: x.jsonl}}\nsteps:\n  - "


class Paint(LocalStep, tag="paint", frozen=True, kw_only=True):
    color: Literal["red", "green"] = "red"
    frame: Literal["thin", "thick"] | None = None
    size: int | Literal["large"] = 1
    label: str = ""


@pytest.mark.parametrize(
    "values", [{}, {"color": "green"}, {"frame": None}, {"frame": "thin"}, {"size": 3, "label": "x"}, {"size": "small"}]
)
def test_valid_choices_and_other_fields_pass(values):
    check_choices(Paint, values)


@pytest.mark.parametrize(
    ("values", "message", "nearest"),
    [
        ({"color": "gren"}, "color must be one of red, green, not 'gren'", "green"),
        ({"color": None}, "color must be one of red, green, not None", None),
        ({"frame": "thik"}, "frame must be one of thin, thick, not 'thik'", "thick"),
        ({"color": 3}, "color must be one of red, green, not 3", None),
    ],
)
def test_other_values_are_refused_with_the_nearest_choice(values, message, nearest):
    with pytest.raises(UsageError) as raised:
        check_choices(Paint, values)
    assert raised.value.message == message
    assert raised.value.help == (f'did you mean "{nearest}"?' if nearest else None)


@pytest.mark.parametrize(
    ("step_type", "required", "key", "written", "meant"),
    [
        (Deduplicate, {}, "kind", "exat", "exact"),
        (Deduplicate, {}, "verify", "texts", "text"),
        (Mix, {"weights": {"web": 1.0}, "size": 1}, "by", "token", "tokens"),
        (Pack, {"row_length": 8}, "strategy", "bestfit", "best_fit"),
        (Pack, {"row_length": 8}, "long_documents", "spit", "split"),
        (Shuffle, {}, "across", "source", "sources"),
        (Tokenize, {"tokenizer": "x"}, "special_tokens_in_text", "tokens", "token"),
        (Tokenize, {"tokenizer": "x"}, "engine", "fastoken", "fastokens"),
    ],
)
def test_python_and_recipes_name_the_nearest_choice(step_type, required, key, written, meant):
    values = {**required, key: written}
    with pytest.raises(UsageError, match=f"{key} must be one of") as in_python:
        step_type(**values)
    with pytest.raises(UsageError, match=f"line 4: .*{key} must be one of") as in_recipe:
        parse_recipe(f"{RECIPE}{step_type.__struct_config__.tag}: {values}\n")
    assert in_python.value.help == in_recipe.value.help == f'did you mean "{meant}"?'
