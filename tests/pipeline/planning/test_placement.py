"""A run stays in the process only if every condition holds; wherever it runs, it leaves the same bytes."""

import gc
import gzip
import json
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.reports import read_without_times
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill.core.recipe import Source
from gristmill.core.step import LocalStep
from gristmill.pipeline import work_folder
from gristmill.pipeline.planning import placement as in_process
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps import (
    Deduplicate,
    GopherRepetition,
    Language,
    Length,
    Map,
    Pack,
    Read,
    Render,
    Split,
    Tokenize,
    Write,
)

LINES = [json.dumps({"n": n, "text": f"document number {n} has some words"}) for n in range(50)]


class OwnStep(LocalStep, tag="own", frozen=True, kw_only=True):
    """A step class that is not Gristmill's own."""


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n".join(LINES))
    (folder / "b.txt").write_text("\n".join(["one line", "another line"]))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("\n".join(LINES).encode()))
    (folder / "e.jsonl").write_text(LINES[0])
    (folder / "d.csv").write_text("text\nhello\n")
    (folder / "chats.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]})
    )
    (folder / "functions.py").write_text("def same(record):\n    return record\n")
    return folder


def recipe_of(inputs, *steps, read="a.jsonl", out="out"):
    paths = [str(inputs / name) for name in ([read] if isinstance(read, str) else read)]
    steps = [*steps, Write(format="jsonl")]
    return gm.Recipe(sources={"web": Read(read=paths)}, steps=steps, output=str(inputs.parent / out))


def placement_of(recipe, **options):
    return make_plan(recipe, **options).placement


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): read_without_times(path) for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("read", ["a.jsonl", "b.txt", ["a.jsonl", "e.jsonl"]], ids=str)
def test_a_small_job_stays(inputs, read):
    placement = placement_of(recipe_of(inputs, read=read))
    assert placement.is_small_job
    assert placement.backend == "serial"
    assert str(placement) == "in this process, because the input is small"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"timeout": 5.0}, "timeout"),
        ({"workers": 1}, "workers"),
        ({"backend": "processes"}, "asked for"),
    ],
    ids=str,
)
def test_what_the_caller_asks_for_needs_processes(inputs, options, word):
    placement = placement_of(recipe_of(inputs), **options)
    assert (placement.backend, placement.is_small_job) == ("processes", False)
    assert word in placement.reason


@pytest.mark.parametrize(
    ("read", "word"),
    [("c.jsonl.gz", "compressed"), ("d.csv", "csv"), (["a.jsonl", "c.jsonl.gz"], "compressed")],
    ids=str,
)
def test_other_files_need_processes(inputs, read, word):
    placement = placement_of(recipe_of(inputs, read=read))
    assert placement.backend == "processes"
    assert word in placement.reason


def test_steps_with_code_of_others_need_processes(inputs):
    (inputs / "chat.jinja").write_text(
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    )
    function, template = (
        Map(call=f"{inputs}/functions.py:same"),
        Render(template=f"{inputs}/chat.jinja", keep="messages"),
    )
    request = in_process.PlacementRequest()
    assert in_process.find_need_for_workers(request, [Length(min_chars=3), Deduplicate(), Write()]) is None
    assert "own" in in_process.find_need_for_workers(request, [OwnStep()])
    assert "map" in in_process.find_need_for_workers(request, [Length(min_chars=3), function])
    assert "chat template" in in_process.find_need_for_workers(request, [template])
    assert "chat template" in in_process.find_need_for_workers(request, [Render(tokenizer="gpt2")])
    assert "chat template" in placement_of(recipe_of(inputs, template, read="chats.jsonl")).reason
    built_in = Render(template="chatml", keep="messages")
    assert placement_of(recipe_of(inputs, built_in, read="chats.jsonl")).is_small_job
    own = gm.Recipe(
        sources={"web": Source(Read(read=f"{inputs}/a.jsonl"), [function])}, output=str(inputs.parent / "out")
    )
    assert placement_of(own).backend == "processes", "steps of one source count too"


def test_the_limit_is_of_all_files_together(inputs):
    layout = UnitLayout(max_in_process_bytes=(inputs / "a.jsonl").stat().st_size)
    assert placement_of(recipe_of(inputs), layout=layout).is_small_job
    assert not placement_of(recipe_of(inputs, read=["a.jsonl", "e.jsonl"]), layout=layout).is_small_job
    against = Deduplicate(against=f"{inputs}/e.jsonl")
    assert not placement_of(recipe_of(inputs, against), layout=layout).is_small_job, "files that a step reads count too"


def test_a_marker_needs_processes_until_a_run_has_finished(inputs):
    recipe = recipe_of(inputs, Length(min_chars=3))
    out = inputs.parent / "out"
    out.mkdir()
    with work_folder.mark_in_process(out):
        marked = files_in(out)
        assert "killed" in placement_of(recipe).reason
    for path, content in marked.items():  # as a run leaves it that was killed
        (out / path).write_bytes(content)
    events = inputs / "events.jsonl"
    gm.run(recipe, progress=False, events=events, keep_work=True)
    assert {json.loads(line)["backend"] for line in events.read_text().splitlines() if "run_placed" in line} == {
        "processes"
    }
    assert not work_folder.has_in_process_marker(out)
    assert placement_of(recipe).is_small_job


def test_all_places_leave_the_same_bytes(inputs):
    steps = [Length(min_chars=3), Deduplicate(), Split(validation=0.2)]
    (inputs / "a.jsonl").write_text("\n".join([*LINES, "{broken", LINES[3]]))
    written = []
    for place in ("auto", "processes", "serial"):
        recipe = recipe_of(inputs, *steps, out="out")
        events = inputs / f"{place}.jsonl"
        run_recipe(
            gm.Recipe(sources=recipe.sources, steps=recipe.steps, output=recipe.output, max_quarantine=0.5),
            RunOptions(backend=place, progress=False, events=gm.EventLog(events)),
        )
        placed = json.loads(events.read_text().splitlines()[0])
        assert placed["event"] == "run_placed"
        assert placed["backend"] == ("serial" if place == "auto" else place)
        written.append(files_in(inputs.parent / "out"))
        (inputs.parent / "out").rename(inputs.parent / place)
    assert written[0] == written[1] == written[2]


def test_records_from_python_stay_too(inputs):
    records = [json.loads(line) for line in LINES]
    events = inputs / "events.jsonl"
    recipe = gm.Recipe(sources={"py": Read(read=records)}, steps=[Write(format="jsonl")], output=str(inputs / "out"))
    gm.run(recipe, progress=False, events=events)
    assert json.loads(events.read_text().splitlines()[0])["where"] == "in this process, because the input is small"


def describe_process():
    """What a caller's program may have set, and what workers set for themselves."""
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "environment": dict(os.environ),
        "imports": [*sys.meta_path, *sys.path_hooks, *sys.path],
        "pandas": sys.modules.get("pandas", "not loaded"),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "hooks": [sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile()],
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": umask,
        "threads": [pa.cpu_count(), pa.io_thread_count(), os.sched_getaffinity(0)],
        "recursion": sys.getrecursionlimit(),
        "collector": [gc.isenabled(), gc.get_threshold()],
        "streams": [sys.stdin, sys.stdout, sys.stderr],
        "logging": [logging.getLogger().handlers[:], logging.getLogger("gristmill").handlers[:], warnings.filters[:]],
        "random": [random.getstate(), str(np.random.get_state())],
    }


def test_nothing_of_the_callers_process_is_changed(inputs, tmp_path):
    trained(tmp_path / "tokenizer")
    steps = [Length(min_chars=3), GopherRepetition(), Language(languages=["en"], min_score=0), Deduplicate()]
    steps += [Tokenize(tokenizer=str(tmp_path / "tokenizer")), Pack(row_length=32)]
    recipe = gm.Recipe(sources={"web": Read(read=f"{inputs}/a.jsonl")}, steps=steps, output=str(tmp_path / "out"))
    assert placement_of(recipe).is_small_job
    before = describe_process()
    gm.run(recipe, progress=False)
    after = describe_process()
    assert [name for name in before if before[name] != after[name]] == []


@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt(), TimeoutError("alarm")], ids=repr)
def test_what_a_signal_handler_of_the_caller_raises_comes_out(inputs, error, monkeypatch):
    """It may be raised in the middle of a task, which must not take it for an error of the task and try again."""
    num_calls = 0

    def interrupt(*args):
        nonlocal num_calls
        num_calls += 1
        raise error

    recipe = recipe_of(inputs, Length(min_chars=3))
    plan = make_plan(recipe)
    assert plan.placement.is_small_job
    with monkeypatch.context() as patched:
        patched.setattr("gristmill.pipeline.stages.slice_run._SliceRun.run", interrupt)
        with pytest.raises(type(error)):
            gm.run(recipe, progress=False)
    assert num_calls == 1
    assert not work_folder.has_in_process_marker(inputs.parent / "out")
    assert gm.run(recipe, progress=False).manifest
