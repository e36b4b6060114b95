import json

import pytest
from click.testing import CliRunner

from gristmill.cli.running.plan import plan_command
from gristmill.core.errors import UsageError


def test_tree_names_sources_stages_output_and_next_command(gristmill, project):
    out = gristmill("plan", "recipe.yaml", "--set", "seed=3", folder=project).out
    for words in ("stage 1: read → length → split → write", str(project / "out"), "free"):
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


def write_recipe(folder, steps):
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n} " * 20}) + "\n" for n in range(300)))
    (folder / "recipe.yaml").write_text(
        f"output: {folder}/out\nsources: {{web: {{read: {folder}/in.jsonl}}}}\nsteps: {steps}\n"
    )
    return str(folder / "recipe.yaml")


def test_an_estimate(tmp_path):
    recipe = write_recipe(tmp_path, "[length: {min_chars: 3}, write: {format: jsonl}]")
    result = CliRunner().invoke(plan_command, [recipe, "--cluster", "64x32", "--json"])
    estimate = json.loads(result.stdout)["cluster"]
    assert (estimate["nodes"], estimate["cores"], estimate["tasks"]) == (64, 32, 1)
    assert estimate["bytes_a_second"] > 0
    assert not (tmp_path / "out").exists()
    text = CliRunner().invoke(plan_command, [recipe, "--cluster", "2x8"]).stdout
    assert "on 2 nodes with 8 cores each: about" in text
    words = [recipe, "--cluster", "32x32", "--size", "10TB", "--price", "core_hour=0.04", "--json"]
    large = json.loads(CliRunner().invoke(plan_command, words).stdout)["cluster"]
    assert large["input_bytes"] == 10**13
    assert large["costs"]["core_hour"] > 0
    assert isinstance(CliRunner().invoke(plan_command, [recipe, "--size", "10TB"]).exception, UsageError)


def test_a_sample_that_is_too_small(tmp_path):
    recipe = write_recipe(tmp_path, "[mix: {weights: {web: 1}, size: 200, by: documents}, write: {format: jsonl}]")
    result = CliRunner().invoke(plan_command, [recipe, "--cluster", "2x8", "--limit", "5"])
    assert isinstance(result.exception, UsageError)
    assert "--limit takes more records" in str(result.exception)


def test_the_plan_says_why_a_dataset_is_not_up_to_date(gristmill, tmp_path):
    recipe = write_recipe(tmp_path, "[length: {min_chars: 3}]")
    gristmill("run", recipe)
    assert json.loads(gristmill("plan", recipe, "--json").out)["finished"] == "up to date"
    out = gristmill("plan", recipe, "--set", "steps.0.length.min_chars=4").out
    assert "min_chars was 3, is 4" in " ".join(out.split())
    assert "--update" in out
