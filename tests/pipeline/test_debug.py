"""Debug mode: this process, few records, every step shown, and the user's exception as it was raised."""

import json
import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gristmill as gm
from gristmill import steps


@pytest.fixture
def recipe(project):
    lines = [json.dumps({"text": f"document {number}", "n": number}) for number in range(300)]
    Path("data.jsonl").write_text("\n".join(lines))

    def make(*middle):
        return gm.Recipe(sources={"web": steps.Read(read="data.jsonl")}, steps=list(middle), output="out")

    return make


def test_a_few_records_in_this_process(recipe, capsys):
    seen = []

    def note(record):
        seen.append((os.getpid(), record["n"]))
        return record["n"] != 1

    result = gm.run(recipe(steps.Filter(call=note), steps.Shuffle(), steps.Length(min_chars=3)), debug=True)
    assert {pid for pid, _ in seen} == {os.getpid()}
    assert {number for _, number in seen} == set(range(100))
    shown = capsys.readouterr().out
    for name in ("read", "filter", "length"):
        block = shown.partition(f"web · {name}: ")[2].partition("web · ")[0]
        assert len([line for line in block.splitlines() if '"text"' in line]) == 3
    assert "1 dropped as rejected" in shown
    assert len(result.dataset()) == 99
    assert not Path("out").exists()
    assert Path(result.output).is_absolute()


@pytest.mark.parametrize("fails", [False, True])
def test_no_folder_is_left(project, fails):
    Path("data.jsonl").write_text('{"text": "a document"}\n')
    (project / "temporary").mkdir()
    call = "lambda record: 1 / 0" if fails else "lambda record: record"
    Path("script.py").write_text(
        f"import gristmill as gm\nfrom gristmill import steps\nmap = steps.Map(call={call})\n"
        "recipe = gm.Recipe(sources={'web': steps.Read(read='data.jsonl')}, steps=[map], output='out')\n"
        "assert len(gm.run(recipe, debug=True).dataset()) == 1\n"
    )
    environment = os.environ | {"TMPDIR": str(project / "temporary")}
    done = subprocess.run([sys.executable, "script.py"], env=environment, capture_output=True, text=True, check=False)
    assert ("ZeroDivisionError" in done.stderr) == fails == bool(done.returncode)
    assert list((project / "temporary").iterdir()) == []


def test_the_limit_is_the_callers(recipe, capsys):
    assert len(gm.run(recipe(steps.Length(min_chars=3)), debug=True, limit=7).dataset()) == 7


class Broken(Exception):
    pass


def fail_at(number, error):
    def function(record):
        if record["n"] == number:
            local = record["n"] + 1
            raise error(local)
        return record

    return function


@pytest.mark.parametrize("error", [Broken, OSError, SystemExit])
@pytest.mark.parametrize("number", [0, 42])
def test_the_first_exception_is_raised_as_it_is(recipe, capsys, error, number):
    with pytest.raises(error) as caught:
        gm.run(recipe(steps.Map(call=fail_at(number, error)), steps.Length(min_chars=3)), debug=True)
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    assert frames[-1].f_locals["local"] == number + 1
    [note] = caught.value.__notes__
    assert "step map" in note
    assert json.dumps({"text": f"document {number}", "n": number}) in note
    assert not Path("out").exists()


def test_a_batch_function(recipe, capsys):
    def function(batch):
        if "document 42" in batch.column("text").to_pylist():
            raise Broken(batch.num_rows)
        return batch

    with pytest.raises(Broken) as caught:
        gm.run(recipe(steps.MapBatches(call=function)), debug=True)
    assert caught.value.args == (1,)


def test_a_function_that_fails_every_time(recipe, capsys):
    """The plan of an ordinary run refuses it; here its exception is wanted."""

    def function(record):
        raise Broken

    with pytest.raises(Broken):
        gm.run(recipe(steps.Filter(call=function)), debug=True)


def test_a_function_that_fails_only_once(recipe, capsys):
    calls = []

    def function(record):
        calls.append(record["n"])
        if record["n"] == 150 and calls.count(150) == 1:
            raise Broken("the first time")
        return True

    with pytest.raises(gm.errors.GristmillError, match="once more") as caught:
        gm.run(recipe(steps.Filter(call=function)), debug=True, limit=200)
    assert "the first time" in "".join(caught.value.__notes__)


def test_after_the_first_exception_nothing_is_called_but_the_record_itself(recipe, capsys):
    calls = []

    def function(record):
        calls.append(record["n"])
        if record["n"] >= 20:
            raise Broken
        return True

    with pytest.raises(Broken):
        gm.run(recipe(steps.Filter(call=function)), debug=True)
    assert max(calls) == 20


def test_after_the_first_exception_only_its_batch_is_searched(recipe, capsys):
    calls = []

    def function(batch):
        numbers = [int(text.split()[1]) for text in batch.column("text").to_pylist()]
        calls.append(numbers)
        if max(numbers) >= 20:
            raise Broken
        return batch

    with pytest.raises(Broken):
        gm.run(recipe(steps.MapBatches(call=function)), debug=True)
    assert max(numbers[0] for numbers in calls) == 20


def test_a_template_of_a_model_runs_in_a_worker_where_nothing_could_stop_it(recipe, capfd):
    Path("template.jinja").write_text("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}")
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    Path("data.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    made = recipe(steps.Render(template="template.jinja"), steps.Write(format="jsonl"))
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(gm.run, made, debug=True).result().dataset()) == 1
    assert "worker process" in capfd.readouterr().out
