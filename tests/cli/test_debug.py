import json
import subprocess
import sys

import pytest


@pytest.fixture
def failing(project):
    (project / "functions.py").write_text(
        "def check(record):\n    wanted = record['id']\n    assert wanted != 5, 'five'\n    return True\n"
    )
    recipe = (
        (project / "recipe.yaml").read_text().replace("steps:\n", "steps:\n  - filter: {call: functions.py:check}\n")
    )
    (project / "recipe.yaml").write_text(recipe)
    return project


def test_records_are_shown_and_nothing_is_written(gristmill, project):
    out = gristmill("run", project / "recipe.yaml", "--debug").out
    assert "web · length" in out
    assert '"document 0"' in out
    assert "1 dropped as too_short" in out
    assert "quarantined as invalid_json" in out
    assert not (project / "out").exists()


def debug(folder, *options, answers=""):
    command = [sys.executable, "-m", "gristmill", "run", str(folder / "recipe.yaml"), *options]
    done = subprocess.run(command, input=answers, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    return done


def test_the_traceback_begins_in_the_users_file(failing):
    errors = debug(failing, "--debug").stderr
    first, *frames = [line for line in errors.splitlines() if line.startswith(("Traceback", "  File "))]
    assert first.startswith("Traceback")
    assert len(frames) == 1
    assert "functions.py" in frames[0]
    assert "AssertionError: five" in errors
    assert json.dumps({"text": "document 5", "id": 5}) in errors


def test_a_debugger_opens_where_it_failed(failing):
    assert "wanted is 5" in debug(failing, "--pdb", answers="p f'wanted is {wanted}'\nq\n").stdout


def test_no_more_is_shown_as_read_than_the_limit_lets_through(gristmill, project):
    out = gristmill("run", project / "recipe.yaml", "--debug", "--limit", 2).out
    assert "web · read: 2 records" in out


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_what_would_hide_the_records_is_refused(gristmill, project, option):
    assert option in gristmill("run", project / "recipe.yaml", "--debug", option, fails=2).err


def test_where_the_steps_run_in_a_worker_it_says_so(failing):
    (failing / "template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    lines = [json.dumps({"messages": turns, "id": number}) for number in range(8)]
    (failing / "data.jsonl").write_text("\n".join(lines))
    (failing / "recipe.yaml").write_text(
        "{output: out, sources: {web: {read: data.jsonl}}, steps: [filter: {call: 'functions.py:check'}, "
        "render: {template: template.jinja}, write: {format: jsonl}]}"
    )
    done = debug(failing, "--pdb")
    assert "worker process" in done.stdout
    assert "AssertionError: five" in done.stderr
    assert "--pdb: the function ran in a worker" in done.stderr
