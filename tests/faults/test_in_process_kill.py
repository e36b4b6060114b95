"""Runs that die in their own process: the next one works in processes, finds what killed it, and leaves equal bytes."""

import json
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
from gristmill_testing.reports import read_without_times

from gristmill.pipeline import work_folder

SCRIPT = """
    import os, signal, sys
    import gristmill as gm
    from gristmill.pipeline.planning import placement
    from gristmill.pipeline.stages import runner
    from gristmill.steps import Length, Map, Read, Shuffle, Write

    root, moment, backend = sys.argv[1:]

    run, num_stages = runner.StageRunner.run, 0

    def run_or_die(self, stage, units, desc):
        global num_stages
        num_stages += 1
        if num_stages == {"first stage": 1, "second stage": 2}.get(moment):
            os.kill(os.getpid(), signal.SIGKILL)
        run(self, stage, units, desc)

    runner.StageRunner.run = run_or_die
    steps = [Length(min_chars=3), Shuffle(), Length(min_chars=4)]
    if moment == "record":  # as if a built-in step crashed
        placement.runs_user_code = lambda steps: False
        steps = [Map(call=f"{root}/functions.py:dies")]
    recipe = gm.Recipe(
        sources={"web": Read(read=f"{root}/in/*.jsonl")}, steps=[*steps, Write(format="jsonl")], output=f"{root}/out"
    )
    gm.run(recipe, backend=backend, progress=False, events=f"{root}/events.jsonl")
"""
FUNCTIONS = """
import ctypes

def dies(record):
    if record["n"] == 170:
        ctypes.string_at(0)
    return record
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    lines = [json.dumps({"n": n, "text": f"text {n}"}) for n in range(300)]
    (tmp_path / "in/a.jsonl").write_text("\n".join(lines))
    return tmp_path


def run(folder, moment, backend="auto"):
    (folder / "events.jsonl").unlink(missing_ok=True)
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), moment, backend]
    code = subprocess.run(command, check=False, capture_output=True).returncode
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return code, next(event["backend"] for event in events if event["event"] == "run_placed")


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): read_without_times(path) for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("moment", ["first stage", pytest.param("second stage", marks=pytest.mark.slow)])
def test_killed_and_resumed_in_processes(folder, moment):
    out = folder / "out"
    assert run(folder, "never", backend="serial") == (0, "serial")
    expected = files_in(out)
    shutil.rmtree(out)
    assert run(folder, moment) == (-signal.SIGKILL, "serial")
    assert work_folder.has_in_process_marker(out)
    assert run(folder, "never") == (0, "processes")
    assert files_in(out) == expected


@pytest.mark.slow
def test_a_record_that_kills_the_process_is_found_by_the_next_run(folder):
    """The first 100 records are those that a plan tries; the one that kills comes later, so only the run meets it."""
    out = folder / "out"
    assert run(folder, "record", backend="processes") == (0, "processes")
    expected = files_in(out)
    assert b'"n": 170' in expected["quarantine/web.jsonl"] or b'\\"n\\": 170' in expected["quarantine/web.jsonl"]
    shutil.rmtree(out)
    code, backend = run(folder, "record")
    assert (code, backend) == (-signal.SIGSEGV, "serial")
    assert run(folder, "record") == (0, "processes")
    assert files_in(out) == expected
    assert not work_folder.has_in_process_marker(out)
