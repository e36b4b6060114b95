import json


def test_shows_scores_rules_and_where_it_leaves(gristmill, project):
    shown = gristmill("explain", "recipe.yaml", "data.jsonl:7", "--set", "steps=[gopher_quality]", folder=project).out
    assert "gopher_quality: dropped as min_words" in shown
    assert "FAILS" in shown
    assert "min_stop_words" in shown
    assert "it leaves the recipe at gopher_quality" in shown


def test_json(gristmill, project):
    found = json.loads(gristmill("explain", "recipe.yaml", "data.jsonl:7", "--json", folder=project).out)
    assert found["record"] == {"text": "tiny"}
    assert found["leaves_at"] == "length"
    assert found["steps"][0]["verdict"] == "dropped"


def test_wrong_use(gristmill, project):
    for place in ("other.jsonl", "data.jsonl:99", "data.jsonl:x"):
        assert gristmill("explain", "recipe.yaml", place, folder=project, fails=2).err.startswith("error: ")
