"""Functions that kill or hang their process on one record: it is found and quarantined, all others are kept."""

import json

import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.engine.observer import EventLog
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.steps import Map, MapBatches, Read, Write

FUNCTIONS = """
import ctypes, time

def dies(record):
    if record["n"] in (170, 250):
        ctypes.string_at(0)
    return {**record, "text": record["text"].upper()}

def hangs(record):
    if record["n"] == 170:
        time.sleep(1000)
    return {**record, "text": record["text"].upper()}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return tmp_path


def write(folder, *, without=()):
    # The numbers stay: records differ in nothing but that some are missing.
    for name, numbers in {"a": range(150), "b": range(150, 300)}.items():
        lines = [json.dumps({"n": n, "text": f"text {n}"}) for n in numbers if n not in without]
        (folder / f"in/{name}.jsonl").write_text("\n".join(lines))


def run(folder, function, **options):
    recipe = Recipe(
        sources={"web": Read(read=f"{folder}/in/*.jsonl")},
        steps=[Map(call=f"{folder}/functions.py:{function}"), Write(format="jsonl")],
        output=str(folder / "out"),
    )
    return run_recipe(recipe, RunOptions(progress=False, **options))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("function", "reason", "numbers", "options"),
    [("dies", "worker_died", [170, 250], {}), ("hangs", "timeout", [170], {"timeout": 1.5})],
    ids=["dies", "hangs"],
)
def test_one_record_ends_every_worker(folder, function, reason, numbers, options):
    write(folder)
    result = run(folder, function, workers=2, **options)
    dataset = open_dataset(folder / "out")
    assert verify(folder / "out")
    assert result.manifest.environment_dependent
    assert result.manifest.quarantine.counts == {"web": {reason: len(numbers)}}
    entries = list(dataset.quarantine())
    assert [json.loads(entry["record"])["n"] for entry in entries] == numbers
    assert all(entry["file"] == "b.jsonl" and entry["reason"] == reason for entry in entries)
    found = [(folder / "out" / shard.path).read_bytes() for _, _, shard in dataset.manifest.shards()]

    write(folder, without=numbers)
    clean = run(folder, function, backend="serial", overwrite=True)
    assert not clean.manifest.environment_dependent
    assert found == [(folder / "out" / shard.path).read_bytes() for _, _, shard in clean.manifest.shards()]


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_timeout_that_cannot_be_kept_is_refused(folder, backend):
    write(folder)
    with pytest.raises(UsageError, match="timeout"):
        run(folder, "hangs", backend=backend, timeout=5.0)
    assert not (folder / "out").exists()


def deaths(path):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return sum(event["event"] == "worker_died" for event in events)


@pytest.mark.parametrize(
    ("function", "options", "most"), [("dies", {}, 16), ("hangs", {"timeout": 3.0}, 4)], ids=["dies", "hangs"]
)
def test_few_workers_are_lost_to_one_record(folder, function, options, most):
    """Two records that kill, or one that never ends."""
    write(folder)
    log = folder / "events.jsonl"
    result = run(folder, function, workers=2, events=EventLog(log), **options)
    assert sum(result.manifest.quarantine.counts["web"].values()) == (2 if function == "dies" else 1)
    assert deaths(log) <= most


@pytest.mark.full
def test_a_worker_that_was_stopped_costs_no_record(folder):
    """Somebody stopped a worker: it is late, but no record is. The task is run again."""
    (folder / "functions.py").write_text(
        "import os, pathlib, signal\n"
        f"mark = pathlib.Path({str(folder)!r}, 'stopped')\n"
        "def stops_once(record):\n"
        "    if record['n'] == 170 and not mark.exists():\n"
        "        mark.touch()\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return record\n"
    )
    write(folder)
    result = run(folder, "stops_once", workers=2, timeout=5.0)
    assert not result.manifest.quarantine.counts
    assert len(open_dataset(folder / "out")) == 300


@pytest.mark.full
def test_a_cell_whose_records_are_slow_only_together(folder):
    """Each of its records is quick, all of them take longer than the timeout: they are run in pieces."""
    (folder / "functions.py").write_text(
        "import time\ndef slow(batch):\n    time.sleep(0.01 * batch.num_rows)\n    return batch\n"
    )
    (folder / "in/a.jsonl").write_text("\n".join(json.dumps({"text": f"text {n}"}) for n in range(640)))
    recipe = Recipe(
        sources={"web": Read(read=f"{folder}/in/*.jsonl")},
        steps=[MapBatches(call=f"{folder}/functions.py:slow"), Write(format="jsonl")],
        output=str(folder / "out"),
    )
    result = run_recipe(recipe, RunOptions(progress=False, workers=1, timeout=5.0))
    assert not result.manifest.quarantine.counts
    assert len(open_dataset(folder / "out")) == 640
