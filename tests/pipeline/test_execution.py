"""One pool of workers serves a whole run: workers stay from stage to stage, and what one stage did shapes no other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.core.recipe import Source
from gristmill.engine.observer import EventLog
from gristmill.steps import Deduplicate, Length, Map, Read, Shuffle, Write

DISTURB = '''
import locale, sys, types
import numpy as np

calls = 0

def disturb(record):
    """Change all that a later stage could notice in the same process; the record depends on none of it."""
    global calls
    calls += 1
    locale.setlocale(locale.LC_ALL, "C" if calls % 2 else "")
    np.random.seed(calls)
    sys.modules["colorsys"] = types.ModuleType("colorsys")
    if "gristmill.engine.worker.main" in sys.modules:  # not in the one process of a serial run
        sys.modules["gristmill.core.seeds"]._mix = lambda values: values
    return {**record, "calls": 0}
'''
RECIPE = """
output: out
sources: {web: {read: lines.jsonl}}
steps:
  - map: {call: "disturb.py:disturb"}
  - shuffle
  - sample: {fraction: 0.5}
  - write: {format: jsonl}
"""


def run_command(folder, *words):
    command = [sys.executable, "-m", "gristmill", "run", "recipe.yaml", "--overwrite", "--json", "--quiet", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_function_changes_in_its_process_shapes_no_later_stage(tmp_path):
    (tmp_path / "disturb.py").write_text(DISTURB)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(300)))
    expected = run_command(tmp_path, "--backend", "serial")
    found = run_command(tmp_path, "--workers", "2")
    assert found["dataset_hash"] == expected["dataset_hash"]
    assert found["books"] == expected["books"]


def read_events(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def list_workers(events):
    """List the workers of all jobs; "caller" is this process, for jobs of a single task."""
    return [event["worker"] for event in events if event["event"] == "worker_ready" and event["worker"] != "caller"]


def run_with_events(mill, recipe, path, **options):
    mill.run(recipe, workers=2, backend="processes", events=EventLog(path), **options)
    return read_events(path)


def test_all_stages_have_the_same_workers(mill, corpus, small_units, tmp_path):
    sources = {"web": Read(read=f"{corpus}/web/*.jsonl"), "books": Read(read=f"{corpus}/books/small*")}
    steps = [Length(min_chars=30), Deduplicate(), Shuffle(), Write(format="jsonl")]
    events = run_with_events(mill, mill.recipe(sources, steps), tmp_path / "events.jsonl")
    jobs = [event for event in events if event["event"] == "job_started"]
    assert len(jobs) >= 4
    assert len(set(list_workers(events))) <= 2
    started = [event["worker"] for event in events if event["event"] == "worker_started"]
    assert set(started) <= {"caller"}  # the others were there before


def test_function_has_workers_of_its_own(mill, corpus, small_units, tmp_path):
    function = f"{corpus}/functions.py:shout"
    sources = {"web": Source(Read(read=f"{corpus}/web/*.jsonl"), [Map(call=function)])}
    steps = [Shuffle(), Length(min_chars=30), Write(format="jsonl")]
    events = run_with_events(mill, mill.recipe(sources, steps), tmp_path / "events.jsonl")
    workers, stage = {}, None
    for event in events:
        if event["event"] == "job_started":
            stage = event["job"]
        if event["event"] == "worker_ready":
            workers.setdefault(stage, set()).add(event["worker"])
    first, *others = workers.values()
    assert others
    assert all(first.isdisjoint(other) for other in others)
    assert len(set.union(*others)) <= 2


NOTE_MODULES = """
import atexit, json, os, sys

def note():
    if "gristmill.engine.worker.main" in sys.modules:
        with open(os.path.join(os.environ["MODULES"], str(os.getpid())), "w") as file:
            json.dump(sorted(name for name, module in sys.modules.items() if getattr(module, "__spec__", None)), file)

atexit.register(note)
"""
TEXT_RECIPE = """
output: out
sources: {{web: {{read: "{corpus}/web/large.jsonl"}}}}
steps: [length: {{min_chars: 30}}, shuffle, write: {{format: jsonl}}]
"""
WORKER_PACKAGES = {
    *("gristmill", "numpy", "pyarrow", "msgspec", "xxhash"),
    *("zstandard", "typing_extensions"),
    *("numba", "llvmlite", "cffi", "pycparser", "yaml", "coverage"),  # for the compiled kernel that cuts JSON lines
    *("cloudpickle", "dateutil", "six"),  # pyarrow's
}
MAX_WORKER_MODULES = 143


@pytest.fixture(scope="module")
def worker_modules(corpus, tmp_path_factory):
    """The modules of a worker at the end of a run of text in two stages."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "site").mkdir()
    (folder / "modules").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NOTE_MODULES)
    (folder / "recipe.yaml").write_text(TEXT_RECIPE.format(corpus=corpus))
    paths = [str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MODULES": str(folder / "modules")}
    command = [sys.executable, "-m", "gristmill", "run", "recipe.yaml", "--quiet", "--workers", "2"]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=240)
    noted = [json.loads(path.read_text()) for path in (folder / "modules").iterdir()]
    assert len(noted) == 2
    return set.union(*map(set, noted))


def test_a_worker_imports_only_these_packages(worker_modules):
    packages = {name.partition(".")[0] for name in worker_modules}
    packages = {name for name in packages if not name.startswith("_")}
    assert packages - set(sys.stdlib_module_names) - WORKER_PACKAGES - {"sitecustomize", "usercustomize"} == set()


@pytest.mark.parametrize(
    "name",
    [
        *("pandas", "rich", "psutil", "ssl", "asyncio", "pyarrow.parquet", "pyarrow.fs", "pyarrow.dataset"),
        *("gristmill.cli", "gristmill.recipe", "gristmill.pipeline.run", "gristmill.pipeline.publishing"),
        *("gristmill.pipeline.planning.plan", "gristmill.text.chats"),
    ],
)
def test_what_a_worker_does_not_need_is_not_imported(worker_modules, name):
    assert [module for module in worker_modules if module == name or module.startswith(f"{name}.")] == []


def test_the_number_of_own_modules(worker_modules):
    own = sorted(module for module in worker_modules if module.startswith("gristmill"))
    assert len(own) <= MAX_WORKER_MODULES, own
