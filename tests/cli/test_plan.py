import json

import pytest


def test_tree_names_sources_stages_output_and_next_command(gristmill, project):
    out = gristmill("plan", "recipe.yaml", "--set", "seed=3", folder=project).out
    for words in ("source web: 1 file", "read → length → split → write", str(project / "out"), "free"):
        assert words in out
    assert "gristmill run recipe.yaml --set seed=3" in out
    assert not (project / "out").exists()


def test_json_has_the_numbers(gristmill, project):
    plan = json.loads(gristmill("plan", project / "recipe.yaml", "--limit", 3, "--json").out)
    [source] = plan["sources"]
    assert source["num_bytes"] == (project / "data.jsonl").stat().st_size
    assert (source["num_files"], source["num_units"], source["num_tasks"]) == (1, 1, 1)
    assert source["stages"] == [["read", "limit"], ["length", "split", "write"]]
    assert plan["fits"] == (plan["needed_bytes"] <= plan["free_bytes"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sources.web.read=nothing-*.jsonl", "nothing-*.jsonl"),
        ("sources.web.text=txet", "text"),
        ("steps=[lenght]", "length"),
        ("output=recipe.yaml", "recipe.yaml"),
        ("steps.1.split.by=domian", "domian"),
    ],
)
def test_what_would_fail_later_is_refused_now(gristmill, project, change, said):
    assert said in gristmill("plan", project / "recipe.yaml", "--set", change, fails=2).err


def test_missing_recipe_points_to_init(gristmill, tmp_path):
    assert "gristmill init" in gristmill("plan", tmp_path / "recipe.yaml", fails=2).err
