"""The memory of Ray's nodes runs out: fewer workers there, the same bytes, and only what does not fit alone is blamed.

Each node has a control group of its own, so that Ray's memory monitor sees the memory of one node. The drivers are
outside of them.
"""

import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import pytest
from gristmill_testing.limited_nodes import LimitedNodes

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.recipe.dump import dump_recipe

pytest.importorskip("ray")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

NODE_BYTES = 2500 << 20
"""Ray takes 0.35 GiB of it. Above four fifths its monitor kills workers."""
FITS_ALONE, NEVER_FITS = 1000, 2200
"""MiB that a record takes."""

FUNCTIONS = """
import threading

def hold(num_mebibytes):
    held = []
    for _ in range(num_mebibytes // 50):
        held.append(bytearray(b"1") * (50 << 20))
        threading.Event().wait(0.02)  # not faster than the monitor looks
    threading.Event().wait(1.0)

def hold_for(record):
    if record["mebibytes"]:
        hold(record["mebibytes"])
    return record
"""
MAP = """
import json, sys
import gristmill as gm
from functions import hold

def work(item):
    hold(item[1])
    return item[0]

items = json.loads(sys.argv[1])
results = gm.parallel_map(work, items, backend="ray", workers=4, on_error="return", progress=gm.EventLog("events"))
print(json.dumps([result.kind if isinstance(result, gm.Failure) else result for result in results]))
"""
RUN = """
import sys
import gristmill as gm
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions

layout = UnitLayout(unit_bytes=4000, min_group_bytes=1000)  # a task for each file
options = RunOptions(backend=sys.argv[2], workers=4, progress=False, events=gm.EventLog("events"), layout=layout)
run_recipe(gm.load_recipe(sys.argv[1]), options)
"""

RESERVE = """
import json, sys
from functions import hold
from gristmill.engine.backends.ray import RaySettings
from gristmill.engine.parallel_run import make_pool
from gristmill.engine.ray_workers import cluster
from gristmill.engine.tasks import Task, run_tasks

def note(num_cpus, num_bytes, **options):
    if num_cpus:
        reserved.append(num_bytes >> 20)
    return start_actor(num_cpus=num_cpus, num_bytes=num_bytes, **options)

reserved, start_actor = [], cluster.start_actor
cluster.start_actor = note
pool = make_pool("ray", settings=RaySettings(worker_bytes=100 << 20))
for size in (850, 10):
    tasks = [Task(f"{size}-{number}", size) for number in range(6)]
    options = {"backend": "ray", "workers": 3, "pool": pool, "progress": False}
    assert len(list(run_tasks(lambda task, context: hold(task.payload), tasks, **options))) == 6
print(json.dumps(reserved))
pool.close(at_once=True)
"""


@pytest.fixture(scope="module")
def nodes():
    with tempfile.TemporaryDirectory(prefix="ray") as folder, contextlib.ExitStack() as stack:  # sockets: short paths
        nodes = LimitedNodes(folder, stack)
        for _ in range(2):
            nodes.add(NODE_BYTES, threshold=0.8)
        yield nodes


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return tmp_path


def drive(nodes, folder, code, *arguments):
    """Run a driver; return what it prints, and its events."""
    driver = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **nodes.environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert driver.returncode == 0, driver.stdout + driver.stderr
    events = folder / "events"
    return driver.stdout, [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []


def count_deaths(events):
    """Count deaths by node. All of them must be for lack of memory."""
    deaths = [event for event in events if event["event"] == "worker_died"]
    assert {event["cause"] for event in deaths} == {"was killed because memory ran out"}
    return collections.Counter(event["node"] for event in deaths)


def list_reductions(events):
    return [event["workers"] for event in events if event["event"] == "workers_reduced"]


def test_two_items_do_not_fit_side_by_side(nodes, folder):
    """Two workers on each of two nodes become one on each, and every item has its result."""
    printed, events = drive(nodes, folder, MAP, json.dumps([(number, FITS_ALONE) for number in range(8)]))
    assert json.loads(printed) == list(range(8))
    assert list_reductions(events)[:2] == [3, 2]
    assert len(count_deaths(events)) == 2


def test_an_item_that_does_not_fit_alone(nodes, folder):
    """It fails, after three runs beside others and three alone; the job gets back the workers that it lost to it."""
    sizes = [100, 100, NEVER_FITS, 100, 100, 100]
    printed, events = drive(nodes, folder, MAP, json.dumps(list(enumerate(sizes))))
    assert json.loads(printed) == [0, 1, "out_of_memory", 3, 4, 5]
    assert count_deaths(events).total() >= 6
    assert sum(event["event"] == "isolated_run" for event in events) == 3


def make_recipe(folder, output):
    recipe = Recipe(
        sources={"web": steps.Read(read=f"{folder}/*.jsonl")},
        steps=[steps.Map(call=f"{folder}/functions.py:hold_for"), steps.Write(format="jsonl")],
        output=str(folder / output),
    )
    (folder / "recipe.yaml").write_text(dump_recipe(recipe))


def write_records(folder, sizes):
    """Write a file for each size, whose record 150 takes that much: the plan's sample does not come so far."""
    for number, size in enumerate(sizes):
        records = [{"text": f"{number} {row}", "mebibytes": size * (row == 150)} for row in range(200)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def read_texts(output):
    return {path.name: path.read_bytes() for path in (output / "train").rglob("*.jsonl")}


def test_a_run_with_records_that_do_not_fit_side_by_side(nodes, folder):
    """The same bytes as one process writes, and nothing in quarantine."""
    write_records(folder, [FITS_ALONE] * 6)
    make_recipe(folder, "serial")
    drive(nodes, folder, RUN, "recipe.yaml", "serial")
    (folder / "events").unlink()
    make_recipe(folder, "out")
    _, events = drive(nodes, folder, RUN, "recipe.yaml", "ray")
    assert list_reductions(events)
    count_deaths(events)
    assert gm.open_dataset(folder / "out").manifest.quarantine.counts == {}
    assert read_texts(folder / "out") == read_texts(folder / "serial")


def test_a_run_with_a_record_that_does_not_fit_alone(nodes, folder):
    """It alone is quarantined, with the reason."""
    write_records(folder, [0, 0, NEVER_FITS, 0])
    make_recipe(folder, "out")
    _, events = drive(nodes, folder, RUN, "recipe.yaml", "ray")
    count_deaths(events)
    assert gm.open_dataset(folder / "out").manifest.quarantine.counts == {"web": {"out_of_memory": 1}}
    texts = [
        json.loads(line)["text"] for content in read_texts(folder / "out").values() for line in content.splitlines()
    ]
    assert sorted(texts) == sorted(
        f"{number} {row}" for number in range(4) for row in range(200) if (number, row) != (2, 150)
    )


def test_three_workers_on_a_node_for_one(folder):
    """After the second kill, a new worker is given the memory that the killed one used."""
    with tempfile.TemporaryDirectory(prefix="ray") as sockets, contextlib.ExitStack() as stack:
        nodes = LimitedNodes(sockets, stack)
        nodes.add(NODE_BYTES, threshold=0.8, num_cpus=3)
        printed, _ = drive(nodes, folder, RESERVE)
    first, later = json.loads(printed)[:3], json.loads(printed)[3:]
    assert first == [100, 100, 100]
    assert max(later) > 400
