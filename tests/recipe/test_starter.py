import json
import re

from gristmill.recipe.load import STEPS, parse_recipe
from gristmill.recipe.templates import STARTER_DATA, STARTER_RECIPE


def test_the_starter_is_a_recipe():
    assert [step.name for step in parse_recipe(STARTER_RECIPE).steps] == ["length", "tokenize", "pack"]


def test_what_is_commented_out_is_right_too():
    uncommented = re.sub(r"^( *)# (- \w+:|\w+: \[)", r"\1\2", STARTER_RECIPE, flags=re.MULTILINE)
    recipe = parse_recipe(uncommented)
    assert len(recipe.steps) == 8
    assert recipe.sources["sample"].read.columns == ["url", "date"]
    assert len(recipe.sources["sample"].steps) == 1
    assert {step.name for step in recipe.steps} <= set(STEPS)


def test_its_data_is_json_lines():
    records = [json.loads(line) for line in STARTER_DATA.splitlines()]
    assert all(isinstance(record["text"], str) for record in records)
    assert len(records) == 30
