"""The parent is killed at random moments, workers and all left to themselves; the same command goes on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from gristmill_testing.reports import read_without_times

from gristmill.shards.verify import verify

SCRIPT = """
import signal, sys
from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.run import run_recipe
from gristmill.steps import Length, Map, Read, Shuffle, Split, Write

root = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
steps = [Map(call=f"{root}/functions.py:slow"), Shuffle(), Length(min_chars=10), Split(validation=0.1)]
recipe = Recipe(
    sources={"web": Read(read=f"{root}/in/*.jsonl")}, steps=[*steps, Write(format="jsonl")], output=f"{root}/out"
)
layout = UnitLayout(unit_bytes=400_000, min_group_bytes=100_000)
run_recipe(recipe, RunOptions(workers=2, progress=False, layout=layout))
print("done")
"""
SLOW = """
import time

def slow(record):
    if record["n"] % 100 == 0:
        time.sleep(0.02)
    if record["n"] == 1234:
        raise ValueError("the one")
    return record
"""


def start(folder):
    with (folder / "errors").open("wb") as errors:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stdout=errors, stderr=errors)


def errors(folder):
    return (folder / "errors").read_text()


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): read_without_times(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def wait_for_end(pids):
    """Processes that are still there after some seconds."""
    for _ in range(200):
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not alive:
            return []
        time.sleep(0.05)
    return alive


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "functions.py").write_text(SLOW)
    for name in range(16):
        records = [{"n": name * 250 + n, "text": f"text {n} of {name} " * 15} for n in range(250)]
        (tmp_path / f"in/{name:02d}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_again_and_again(folder, num_kills):
    before = time.monotonic()
    first = start(folder)
    assert first.wait() == 0, errors(folder)
    seconds = time.monotonic() - before
    expected = files_in(folder / "out")
    shutil.rmtree(folder / "out")
    rng = random.Random(5)
    for _ in range(num_kills):
        run = start(folder)
        time.sleep(seconds * rng.uniform(0.2, 0.9))
        workers = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert not wait_for_end(workers)
        if (folder / "out/manifest.json").exists():
            shutil.rmtree(folder / "out")
    last = start(folder)
    assert last.wait() == 0, errors(folder)
    assert files_in(folder / "out") == expected
    assert verify(folder / "out")
    assert not list(Path("/dev/shm").glob("*gristmill*"))


@pytest.mark.slow
def test_a_second_run_beside_a_living_one_is_refused_and_disturbs_nothing(folder):
    first = start(folder)
    while not (folder / "out/.gristmill-lock").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = start(folder)
    assert second.wait() != 0
    assert f"process {first.pid}" in errors(folder)
    assert first.wait() == 0, errors(folder)
    assert verify(folder / "out")


@pytest.mark.slow
def test_interrupted_by_hand(folder):
    """Ctrl-C: workers end, temporary files go, and the same command goes on."""
    run = start(folder)
    while not list((folder / "out").rglob("receipts.jsonl")):
        assert run.poll() is None
        time.sleep(0.02)
    workers = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(240) != 0
    assert not wait_for_end(workers)
    assert not [path for path in files_in(folder / "out") if path.endswith(".tmp") or path == "manifest.json"]
    last = start(folder)
    assert last.wait() == 0, errors(folder)
    assert verify(folder / "out")
