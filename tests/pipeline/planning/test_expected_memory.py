"""What limits the number of workers, and how much memory a run will need."""

import json
import subprocess
import sys

import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill.core.recipe import Recipe
from gristmill.engine.machine import resources
from gristmill.pipeline.planning import expected_memory
from gristmill.pipeline.planning.expected_memory import expect_memory
from gristmill.pipeline.planning.plan import make_plan
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.language import Language
from gristmill.steps.length import Length
from gristmill.steps.pack.pack import Pack
from gristmill.steps.read import Read
from gristmill.steps.write import Write

MIB = 1 << 20


def _machine(monkeypatch, *, cpus=8, quota=float("inf"), free=64 << 30):
    monkeypatch.setattr(resources, "find_usable_cpus", lambda: list(range(cpus)))
    monkeypatch.setattr(resources, "count_physical_cores", lambda: cpus)
    monkeypatch.setattr(resources, "read_cpu_quota", lambda: quota)
    for module in (resources, expected_memory):
        monkeypatch.setattr(module, "read_memory_available", lambda: free)


def _expect(*steps, slice_bytes=0, num_tasks=1000, in_process=False):
    return expect_memory([steps], slice_bytes=slice_bytes, num_tasks=num_tasks, in_process=in_process)


@pytest.mark.parametrize(
    ("machine", "num_tasks", "expected"),
    [
        ({}, 1000, (8, "cores")),
        ({"quota": 2.5}, 1000, (3, "quota")),
        ({"quota": 20.0}, 1000, (8, "cores")),
        ({"free": 700 * MIB}, 1000, (4, "memory")),
        ({"free": 1}, 1000, (1, "memory")),
        ({}, 5, (5, "tasks")),
        ({}, 0, (1, "tasks")),
    ],
)
def test_the_smallest_limit_is_named(monkeypatch, machine, num_tasks, expected):
    _machine(monkeypatch, **machine)
    memory = _expect(Length(), num_tasks=num_tasks)
    assert (memory.num_workers, memory.limited_by) == expected


def test_the_stage_that_needs_most_decides(monkeypatch):
    _machine(monkeypatch)
    plain = _expect(Length()).worker_bytes
    language, packed = Language(languages=["en"]), Pack(row_length=64)
    both = expect_memory([[language], [packed]], slice_bytes=MIB, num_tasks=9, in_process=False)
    assert both.worker_bytes == _expect(language).worker_bytes > plain
    assert _expect(language, packed, slice_bytes=MIB).worker_bytes == both.worker_bytes + 2 * MIB


def test_partitions_of_a_barrier_count(monkeypatch, tmp_path):
    _machine(monkeypatch)
    plain = _expect(Length()).worker_bytes
    near, lines = Deduplicate(), Deduplicate(kind="lines").resolve("")
    assert near.expected_barrier_bytes(64 << 30, on_store=False) == 160 * MIB
    assert near.expected_barrier_bytes(64 << 30, on_store=True) > 160 * MIB
    assert lines.expected_barrier_bytes(1 << 30, on_store=True) == 160 * MIB
    larger = expect_memory([[Length()]], slice_bytes=0, num_tasks=9, in_process=False, barrier_bytes=160 * MIB)
    assert larger.worker_bytes == plain + 160 * MIB
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "word " * 2_000_000}) + "\n")
    sizes = []
    for partition_bytes in (1, 1 << 30):
        steps = [Deduplicate(partition_bytes=partition_bytes), Write(format="jsonl")]
        recipe = Recipe(sources={"web": Read(read="in.jsonl")}, steps=steps, output="out", folder=str(tmp_path))
        sizes.append(make_plan(recipe, backend="processes").outline().memory.worker_bytes)
    assert sizes[1] - sizes[0] > 5 * MIB, "the plan of a recipe has them too"


def test_the_parent_loads_models_but_writes_nothing(monkeypatch):
    _machine(monkeypatch)
    plain = _expect(Length())
    assert _expect(Language(languages=["en"])).parent_bytes > plain.parent_bytes
    assert _expect(Write(format="parquet"), Pack(row_length=64), slice_bytes=MIB).parent_bytes == plain.parent_bytes


def test_a_run_in_this_process_has_no_workers():
    memory = _expect(Length(), in_process=True)
    assert (memory.num_workers, memory.worker_bytes) == (0, 0)
    assert memory.total_bytes == memory.parent_bytes > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_a_real_run_in_this_process_stays_near_what_is_expected(tmp_path):
    """The estimate is for people, so a factor of two is near enough; one that drifts away must be noticed."""
    trained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text('{"text": "a document of some words"}\n' * 50_000)
    steps = "[{tokenize: {tokenizer: tokenizer}}, {pack: {row_length: 64}}]"
    (tmp_path / "recipe.yaml").write_text(f"output: out\nsources: {{a: {{read: a.jsonl}}}}\nsteps: {steps}\n")
    code = (
        "import gristmill as gm\n"
        "recipe = gm.load_recipe('recipe.yaml')\n"
        "print(gm.plan(recipe).outline().memory.total_bytes)\n"
        "gm.run(recipe, backend='auto', progress=False)\n"
        "print([int(line.split()[1]) << 10 for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected, peak = map(int, done.stdout.split())
    assert expected / 2 < peak < expected * 2
