import json

from click.testing import CliRunner

import gristmill as gm
from gristmill.cli.main import command_line


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


def test_a_copy_is_shown_beside_the_document_that_stays_for_it(tmp_path, monkeypatch):
    words = [f"word{number}" for number in range(60)]
    texts = [" ".join(words), "another text of its own", " ".join([*words[:59], "changed"])]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: web.jsonl}}\nsteps: [deduplicate: {max_source_loss: 1}]\n"
    )
    recipe = str(tmp_path / "recipe.yaml")
    command = ["explain", recipe, f"{tmp_path}/web.jsonl:2", "--json"]
    before = json.loads(CliRunner().invoke(command_line, command).stdout)
    assert "not known" in before["steps"][-1]["verdict"]
    gm.run(gm.load_recipe(recipe), backend="serial", progress=False)
    after = json.loads(CliRunner().invoke(command_line, command).stdout)
    assert after["leaves_at"] == "deduplicate"
    assert after["removed"]["reason"] == "near_duplicate"
    assert (after["removed"]["text"], after["removed"]["survivor_text"]) == (texts[2], texts[0])
    monkeypatch.setenv("COLUMNS", "100")
    shown = CliRunner().invoke(command_line, command[:-1]).stdout
    assert "≠" in shown
    assert "survivor: source web" in shown
