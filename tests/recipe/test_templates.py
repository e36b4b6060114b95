"""The templates run on their sample data, and their comments say the truth."""

import re

import pytest
from click.testing import CliRunner

from gristmill.cli.running.first_steps import TEMPLATE_NAMES, init_command
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import STEPS, load_recipe, parse_recipe
from gristmill.recipe.templates import TEMPLATES


def test_the_command_names_them_all():
    assert tuple(TEMPLATES) == TEMPLATE_NAMES


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_commented_out_is_right_too(name):
    text = re.sub(r"^( *)# (- \w+:)", r"\1\2", TEMPLATES[name][0], flags=re.MULTILINE)
    assert {step.name for step in parse_recipe(text).steps} <= set(STEPS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_comments_say_what_each_step_keeps(tmp_path, name):
    if name == "images":
        pytest.importorskip("PIL")
    assert CliRunner().invoke(init_command, [str(tmp_path), "--template", name]).exit_code == 0
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    result = run_recipe(recipe, RunOptions(backend="serial", progress=False))
    assert not result.warnings
    told = re.findall(r"^ *- (\w+):.*# keeps (\d+) of (\d+)", TEMPLATES[name][0], re.MULTILINE)
    accounts = list(zip(*(books[1:] for books in result.books.values()), strict=True))
    kept = [
        (steps[0].step, sum(step.records_out for step in steps), sum(step.records_in for step in steps))
        for steps in accounts
        if steps[0].step not in ("unite", "write")
    ]
    assert [(step, str(out), str(into)) for step, out, into in kept][: len(told)] == told


@pytest.mark.parametrize("name", ["pretrain", "sft"])
def test_the_training_loop_reads_the_rows(tmp_path, monkeypatch, name):
    pytest.importorskip("torch")
    CliRunner().invoke(init_command, [str(tmp_path / "first"), "--template", name])
    words = [str(tmp_path / "second"), "--template", name, "--tokenizer", str(tmp_path / "first/tokenizer")]
    assert CliRunner().invoke(init_command, words).exit_code == 0
    monkeypatch.chdir(tmp_path / "second")
    run_recipe(load_recipe("recipe.yaml"), RunOptions(backend="serial", progress=False))
    assert not (tmp_path / "second/tokenizer").exists()
    exec(compile((tmp_path / "second/train.py").read_text(), "train.py", "exec"), {})
