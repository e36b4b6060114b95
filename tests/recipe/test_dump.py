import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe, Source
from gristmill.recipe.dump import dump_recipe
from gristmill.recipe.load import load_recipe, parse_recipe
from gristmill.steps import Filter, Length, Read, Rename, Sample, Split

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NASTY = st.sampled_from(
    [
        "no",
        "5e-3",
        "0o17",
        "1_000",
        "~",
        "null",
        "2024-01-01",
        "010",
        "a: b",
        "- x",
        "#",
        "\t",
        "é🌾",
        "\x85",
        "a\u2028 b",
        "a\n\n b",
    ]
)
NAMES = st.text("abcXYZ019 -", min_size=1, max_size=8)
# In a list from Python, what reads like a text is one: see the tests of tables from Python.
PATHS = (WORDS | NASTY).map(lambda word: f"{'-'.join(word.split())}.jsonl")


@given(
    read=WORDS | NASTY | st.lists(PATHS, min_size=1),
    text=(WORDS | NASTY).map(lambda word: re.sub("[{}]", "-", word)),  # braces make it a template
    salt=WORDS | NASTY,
    name=NAMES,
    seed=st.integers(),
    fraction=st.floats(0, 1),
    names=st.dictionaries(WORDS | NASTY, WORDS, max_size=3),
    share=st.floats(0, 1),
)
def test_what_is_written_reads_back_the_same(read, text, salt, name, seed, fraction, names, share):
    steps = [Sample(fraction=fraction, salt=salt), Length(), Split(validation=5)]
    try:
        steps.append(Rename(columns=names))
    except UsageError:
        pass
    recipe = Recipe(
        sources={name: Source(Read(read=read, text=text), [Length(max_chars=5)])},
        steps=steps,
        output=text.strip() or "out",
        seed=seed,
        max_quarantine=share,
        mixture={name: 0.5},
        identity="content",
        slice_bytes=5,
    )
    assert parse_recipe(dump_recipe(recipe)) == recipe


def test_function_files_stay_relative(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("output: out\nsources: {a: {read: x}}\nsteps: [filter: {call: lib/functions.py:f}]\n")
    recipe = load_recipe(path)
    text = dump_recipe(recipe)
    assert "call: lib/functions.py:f" in text
    path.write_text(text)
    assert msgspec.structs.replace(load_recipe(path), written=None) == msgspec.structs.replace(recipe, written=None)


def test_a_python_object_cannot_be_written():
    recipe = Recipe(sources={"a": Read(read="x")}, steps=[Filter(call=lambda record: True)], output="out")
    with pytest.raises(UsageError, match="lambda"):
        dump_recipe(recipe)
