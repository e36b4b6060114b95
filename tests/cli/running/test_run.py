import errno
import json
import os
import resource
import signal
import subprocess
import sys
from time import monotonic, sleep

import pytest

from gristmill.shards.dataset import open_dataset


def test_books_quarantine_output_and_next_command_are_printed(gristmill, project):
    out = gristmill("run", "recipe.yaml", "--workers", 2, folder=project).out
    lines = {words[0] if words[0] != "web" else words[1]: words for line in out.splitlines() if (words := line.split())}
    assert lines["read"][1:3] == ["38", "2"]
    assert lines["length"][1:3] == ["37", "1"]
    files = (project / "out/quarantine/web.jsonl", project / "out/report.html")
    for words in ("1 invalid_json", "1 missing_text", *map(str, files), "gristmill inspect"):
        assert words in out
    assert len(open_dataset(project / "out")) == 37


def test_json_books_balance_and_a_second_run_is_up_to_date(gristmill, project):
    command = ("run", project / "recipe.yaml", "--backend", "serial", "--json")
    first, second = (json.loads(gristmill(*command).out) for _ in range(2))
    for account in first["books"]["web"]:
        lost = sum(account["dropped"].values()) + sum(account["quarantined"].values())
        assert account["in"] + account["created"] == account["out"] + lost
    assert sum(first["rows"].values()) == first["books"]["web"][-1]["out"]
    assert (first["up_to_date"], second["up_to_date"]) == (False, True)
    assert first["dataset_hash"] == second["dataset_hash"]


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_json_is_all_that_is_on_standard_output(gristmill, tmp_path, backend):
    """Whoever else prints there, in this process or in a worker."""
    (tmp_path / "functions.py").write_text(
        "import os\n\ndef say(record):\n    print('a word')\n    os.write(1, b'another\\n')\n    return record\n"
    )
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "recipe.yaml").write_text(
        "output: out\nsources: {a: {read: a.jsonl}}\nsteps: [map: {call: functions.py:say}, write: {format: jsonl}]\n"
    )
    done = gristmill("run", "recipe.yaml", "--backend", backend, "--workers", 1, "--json", folder=tmp_path)
    assert json.loads(done.out)["rows"] == {"train": 2}
    assert json.loads(done.out)["units"] == {"all": 1, "reused": 0, "change": None}
    assert "a word" in done.err
    assert "another" in done.err


@pytest.mark.slow
def test_another_recipe_needs_update_or_overwrite(gristmill, project):
    gristmill("run", project / "recipe.yaml", "--workers", 1)
    changed = ("run", project / "recipe.yaml", "--workers", 1, "--limit", 10)
    error = gristmill(*changed, fails=1).err
    assert "--update" in error
    assert "--overwrite" in error
    gristmill(*changed, "--update")
    assert len(open_dataset(project / "out")) == 9
    assert "update" in gristmill(*changed, "--update", "--overwrite", fails=2).err


def test_options_are_passed_on(gristmill, project):
    events = project / "events.jsonl"
    changes = ("--set", "run.keep_work=true", "--set", "seed=5")
    gristmill("run", project / "recipe.yaml", "--backend", "serial", "--events", events, *changes)
    assert (project / "out/.gristmill/receipts.jsonl").exists()
    assert [json.loads(line)["event"] for line in events.read_text().splitlines()][:2] == ["run_placed", "job_started"]
    assert open_dataset(project / "out").manifest.recipe["seed"] == 5


def test_wrong_use_is_refused_before_anything_is_made(gristmill, project):
    gristmill("run", project / "recipe.yaml", "--backend", "proceses", fails=2)
    gristmill("run", project / "recipe.yaml", "--backend", "serial", "--set", "run.timeout=3", fails=2)
    assert "timeout" in gristmill("plan", project / "recipe.yaml", "--set", "run.timeot=3", fails=2).err
    assert not (project / "out").exists()


def test_too_much_quarantine_fails_and_says_where_to_look(gristmill, project):
    (project / "data.jsonl").write_text('{"text": "good document"}\nbad\n' * 20)
    error = gristmill("run", project / "recipe.yaml", "--backend", "serial", fails=1).err
    assert "invalid_json" in error
    assert "max_quarantine" in error


def test_folder_of_someone_else_is_refused(gristmill, project):
    (project / "out").mkdir()
    (project / "out/thesis.txt").write_text("mine")
    gristmill("run", project / "recipe.yaml", fails=2)
    assert [path.name for path in (project / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("backend", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_file_that_cannot_be_written_is_named_without_a_traceback(gristmill, project, backend):
    def allow_small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    (project / "data.jsonl").write_text('{"text": "a document of some length"}\n' * 10_000)
    command = ("run", project / "recipe.yaml", "--backend", backend, "--workers", 1)
    error = gristmill(*command, fails=1, before=allow_small_files_only).err
    assert error.startswith(f"error: {os.strerror(errno.EFBIG)}")
    assert str(project / "out/.gristmill/work") in error
    assert not (project / "out/manifest.json").exists()
    gristmill(*command)


SLOW = """\
import time
def wait(record):
    open({mark!r}, "w").close()
    time.sleep(0.05 if {slow} else 0)
    return True
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on_and_does(gristmill, project, number, code):
    mark = project / "mark"
    (project / "slow.py").write_text(SLOW.format(mark=str(mark), slow=True))
    recipe = project / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("steps:", "steps:\n  - filter: {call: slow.py:wait}"))
    command = [sys.executable, "-m", "gristmill", "run", recipe.name, "--workers", "1"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = monotonic() + 60
        while not (mark.exists() and (project / "out").exists()) and process.poll() is None and monotonic() < deadline:
            sleep(0.02)
        process.send_signal(number)
        _, error = process.communicate(timeout=240)
    assert process.returncode == code, error
    assert "gristmill run recipe.yaml" in error
    assert "Traceback" not in error
    assert not (project / "out/manifest.json").exists()
    (project / "slow.py").write_text(SLOW.format(mark=str(mark), slow=False))
    gristmill("run", recipe, "--workers", 1)
    assert len(open_dataset(project / "out")) == 37


def test_what_became_of_benchmarks_and_what_changed_is_told(gristmill, tmp_path):
    question = "How many sacks of flour did the miller sell in April and in May altogether?"
    (tmp_path / "bench.jsonl").write_text(json.dumps({"question": question}) + "\n")
    (tmp_path / "web.jsonl").write_text(json.dumps({"text": f"A puzzle. {question}"}) + '\n{"text": "A page."}\n')
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "output: out\nsources: {web: {read: web.jsonl}}\n"
        "steps: [decontaminate: {benchmarks: {sums: bench.jsonl}}, write: {format: jsonl}]\n"
    )
    tagged = gristmill("run", recipe)
    assert "stay" in tagged.err
    assert "1 of 1 items of sums found, in documents: 1 of web; they are tagged" in " ".join(tagged.out.split())
    drop = ("--set", "steps.0.decontaminate.action=drop")
    assert (
        "(steps.0.decontaminate.action was 'tag' (the default), is 'drop')"
        in gristmill("run", recipe, *drop, fails=1).err
    )
    dropped = gristmill("run", recipe, "--update", *drop)
    assert "dropped" in dropped.out
    assert "tagged" not in dropped.out


def test_quiet_says_what_is_lost_and_verbose_all_there_is(gristmill, project):
    command = ("run", project / "recipe.yaml", "--backend", "serial", "--overwrite")
    quiet = gristmill(*command, "-q")
    assert quiet.err == ""
    assert "length" not in quiet.out
    assert str(project / "out") in quiet.out
    assert "quarantined from web: 1 invalid_json, 1 missing_text" in quiet.out
    verbose = gristmill(*command, "-v")
    assert "stage 1" in verbose.err
    assert "length" in verbose.out
    assert len(verbose.out) > len(quiet.out)
    assert "contradict" in gristmill(*command, "-q", "-v", fails=2).err


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


def test_a_debugger_opens_where_a_template_of_a_model_runs(failing):
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
    assert "(Pdb)" in done.stdout
    assert "AssertionError: five" in done.stderr
