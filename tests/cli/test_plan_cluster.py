"""`gristmill plan --cluster`: measured on the first records, and nothing is left."""

import json

from click.testing import CliRunner

from gristmill.cli.running.plan import command
from gristmill.core.errors import UsageError


def write_recipe(folder, steps):
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n} " * 20}) + "\n" for n in range(300)))
    (folder / "recipe.yaml").write_text(
        f"output: {folder}/out\nsources: {{web: {{read: {folder}/in.jsonl}}}}\nsteps: {steps}\n"
    )
    return str(folder / "recipe.yaml")


def test_an_estimate(tmp_path):
    recipe = write_recipe(tmp_path, "[length: {min_chars: 3}, write: {format: jsonl}]")
    result = CliRunner().invoke(command, [recipe, "--cluster", "64x32", "--json"])
    estimate = json.loads(result.stdout)["cluster"]
    assert (estimate["nodes"], estimate["cores"], estimate["tasks"]) == (64, 32, 1)
    assert estimate["bytes_a_second"] > 0
    assert not (tmp_path / "out").exists()
    text = CliRunner().invoke(command, [recipe, "--cluster", "2x8"]).stdout
    assert "on 2 nodes with 8 cores each: about" in text


def test_a_sample_that_is_too_small(tmp_path):
    recipe = write_recipe(tmp_path, "[mix: {weights: {web: 1}, size: 200, by: documents}, write: {format: jsonl}]")
    result = CliRunner().invoke(command, [recipe, "--cluster", "2x8", "--limit", "5"])
    assert isinstance(result.exception, UsageError)
    assert "--limit takes more records" in str(result.exception)
