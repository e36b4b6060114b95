import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe, Source, check_source_name, recipe_to_data, runs_user_code
from gristmill.core.step import LocalStep
from gristmill.steps import Length, Map, Read, Sample, Write

WEB = Read(read="web/*.jsonl")


def test_from_python():
    recipe = Recipe(
        sources={"web": WEB, "books": Source(Read(read="b.parquet", text="content"), [Sample(fraction=0.5)])},
        steps=[Length(min_chars=3), Write(format="jsonl")],
        output="out",
    )
    assert [place for place, _ in recipe.all_steps()] == [
        "sources.web", "sources.books", "sources.books.steps.0", "steps.0", "steps.1",
    ]  # fmt: skip
    assert recipe_to_data(recipe) == {
        "output": "out",
        "sources": {
            "web": {"read": "web/*.jsonl"},
            "books": {"read": "b.parquet", "text": "content", "steps": [{"sample": {"fraction": 0.5}}]},
        },
        "steps": [{"length": {"min_chars": 3}}, {"write": {"format": "jsonl"}}],
    }


def test_paths_start_at_the_recipe(tmp_path):
    recipe = Recipe(sources={"web": WEB}, output=tmp_path / "out", folder=str(tmp_path))
    assert recipe.path("data/x") == str(tmp_path / "data" / "x")
    assert recipe.path("s3://bucket/x") == "s3://bucket/x"
    assert recipe.path(recipe.output) == str(tmp_path / "out")
    with pytest.raises(UsageError, match="NUL"):
        recipe.path("a\0b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": {}},
        {"sources": {"web": "a.jsonl"}},
        {"sources": {"a/b": WEB}},
        {"sources": {"..": WEB}},
        {"sources": {"": WEB}},
        {"output": ""},
        {"max_quarantine": 2},
        {"slice_bytes": 0},
        {"identity": "size"},
        {"mixture": {"wbe": 1.0}},
        {"mixture": {"web": 0}},
        {"steps": ["length"]},
        {"steps": [Length]},
        {"steps": [Length(max_chars=3.5)]},
        {"steps": [Map(call=len, columns=["a"])]},
        {"steps": WEB},
        {"steps": "length"},
        {"sources": [WEB]},
    ],
)
def test_wrong_recipes_are_refused(wrong):
    with pytest.raises(UsageError):
        Recipe(**{"sources": {"web": WEB}, "output": "out", **wrong})


def test_whose_code_runs():
    class Own(LocalStep, tag="own", frozen=True, kw_only=True):
        pass

    ours = [Read(read="x"), Length(min_chars=3), Write()]
    assert not runs_user_code(ours)
    assert runs_user_code([*ours, Map(call=str)])
    assert runs_user_code([*ours, Own()])


@pytest.mark.parametrize("name", ["", ".a", "_a", "a/b", "a\\b", "a\x1b[2J", "a\u202eb", "a\n", 5])
def test_names_of_sources_that_are_no_folders(name):
    with pytest.raises(UsageError, match="cannot be called"):
        check_source_name(name)
