"""Places of workers: one CPU or one NUMA node each, of those that may be used; unpinned where it cannot be done."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gristmill as gm
from gristmill.engine.machine import pinning
from gristmill.engine.machine.pinning import choose_places, find_nodes, parse_cpu_list, parse_pin
from gristmill.engine.worker import binding
from gristmill.engine.worker.binding import Place

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process choose its CPUs")


@pytest.fixture(autouse=True)
def permitted(monkeypatch):
    """A system that permits everything, whatever the one that runs the tests does."""
    monkeypatch.setattr(binding, "can_bind_cpus", lambda: True)
    monkeypatch.setattr(binding, "can_bind_memory", lambda: True)


@pytest.fixture
def nodes(tmp_path):
    """Makes a folder like /sys/devices/system/node from lists of CPUs by node."""

    def make(**lists):
        for name, cpus in lists.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "cpulist").write_text(f"{cpus}\n")
        (tmp_path / "possible").write_text("0-1\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3\n", [0, 1, 2, 3]), ("0,2-3,7", [0, 2, 3, 7]), ("\n", []), ("11", [11])], ids=repr
)
def test_lists_of_cpus(text, cpus):
    assert parse_cpu_list(text) == cpus


def test_nodes_with_usable_cpus_count(nodes):
    """Node 2 is memory alone, node 3 is outside of the mask, node 10 comes after node 1, and `node0x` is no node."""
    folder = nodes(node0="0-3", node1="4-7", node2="", node3="12-15", node10="8-11", node0x="0-3")
    assert find_nodes([1, 2, 4, 8, 9], folder) == {0: (1, 2), 1: (4,), 10: (8, 9)}
    assert list(find_nodes(range(16), folder)) == [0, 1, 3, 10]


def test_workers_are_spread_over_nodes(nodes):
    places = choose_places("numa", range(8), nodes(node0="0-3", node1="4-7")).places
    assert places[0] == Place((0, 1, 2, 3), 0)
    assert [place.node for place in places] == [0, 1, 0, 1, 0, 1, 0, 1]


def test_workers_follow_the_number_of_usable_cpus(nodes):
    """A mask leaves six CPUs of one node and two of the other: three workers here for each one there."""
    pinned = choose_places("numa", [0, 1, 2, 3, 4, 5, 8, 9], nodes(node0="0-7", node1="8-15"))
    assert Counter(place.node for place in pinned.places) == {0: 6, 1: 2}
    assert Counter(place.node for place in pinned.places[:4]) == {0: 3, 1: 1}
    assert {place.cpus for place in pinned.places} == {(0, 1, 2, 3, 4, 5), (8, 9)}
    assert not pinned.note


@pytest.mark.parametrize("usable", [[0, 1], [1]], ids=str)
def test_one_node_is_not_pinned_and_says_so(nodes, usable):
    folder = nodes(node0="0-1", node1="2-3")
    pinned = choose_places("numa", usable, folder)
    assert pinned.places == ()
    assert "one NUMA node" in pinned.note


def test_a_system_without_nodes(tmp_path):
    assert choose_places("numa", [0, 1], tmp_path / "missing").places == ()


def test_without_permission_workers_run_unpinned(nodes, monkeypatch):
    folder = nodes(node0="0", node1="1")
    monkeypatch.setattr(binding, "can_bind_memory", lambda: False)
    pinned = choose_places("numa", [0, 1], folder)
    assert pinned.places == (Place((0,)), Place((1,)))
    assert "memory" in pinned.note
    monkeypatch.setattr(binding, "can_bind_cpus", lambda: False)
    for pin in ("cores", "numa"):
        assert choose_places(pin, [0, 1], folder).places == ()
        assert "not pinned" in choose_places(pin, [0, 1], folder).note


def test_cores_and_none():
    assert choose_places("cores", [2, 0]).places == (Place((2,)), Place((0,)))
    assert choose_places("none", [2, 0]) == pinning.Pinning()


@pytest.mark.parametrize(("value", "pin"), [(True, "cores"), (False, "none"), ("numa", "numa")], ids=str)
def test_words_and_truth_values(value, pin):
    assert parse_pin(value) == pin


def test_a_wrong_word_is_refused():
    with pytest.raises(gm.errors.UsageError, match="numa"):
        gm.parallel_map(abs, [1], pin="nuna")


@needs_linux
@pytest.mark.parametrize("node", [None, 0, 900], ids=str)
def test_workers_are_bound_to_their_place(monkeypatch, node):
    """Also to a node that the kernel refuses: the worker then runs with memory from anywhere."""
    cpu = max(os.sched_getaffinity(0))
    place = Place((cpu,), node)
    monkeypatch.setattr(pinning, "choose_places", lambda pin, cpus: pinning.Pinning((place,)))

    def function(_):
        maps = Path("/proc/self/numa_maps")  # only where the kernel knows NUMA nodes
        return os.sched_getaffinity(0), maps.read_text().split()[1] if maps.exists() else "default"

    ((cpus, policy),) = gm.parallel_map(function, [0], workers=1, pin="numa")
    assert cpus == {cpu}
    assert policy in (["prefer:0", "default"] if node == 0 else ["default"])


@needs_linux
@pytest.mark.parametrize("pin", ["cores", "numa"])
def test_a_mask_that_was_set_outside_is_respected(pin):
    """As `taskset` sets it, or the CPU set of a container."""
    cpu = max(os.sched_getaffinity(0))
    call = f"gm.parallel_map(lambda n: sorted(os.sched_getaffinity(0)), range(4), workers=2, pin={pin!r})"
    script = f"import os; os.sched_setaffinity(0, [{cpu}]); import gristmill as gm; print({call})"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([[cpu]] * 4)
    assert ("one NUMA node" in done.stderr) == (pin == "numa")


@needs_linux
def test_memory_is_bound_where_the_system_permits_it():
    """In a process of its own: the policy of this one stays."""

    def function(_):
        can_bind = binding.can_bind_memory()
        binding.bind_process(Place(tuple(os.sched_getaffinity(0)), 0))
        bound = Path("/proc/self/numa_maps").read_text().split()[1]
        binding.unbind_process(os.sched_getaffinity(0))
        return can_bind, bound, Path("/proc/self/numa_maps").read_text().split()[1]

    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("the kernel knows no NUMA nodes")
    ((can_bind, bound, unbound),) = gm.parallel_map(function, [0], workers=1)
    assert unbound == "default"
    assert bound == ("prefer:0" if can_bind else "default")


def test_a_pinned_run_leaves_the_same_bytes(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "hello world"}\n' * 20)
    contents = []
    for pin in ("none", "cores", "numa"):
        recipe = gm.Recipe(sources={"web": gm.steps.Read(read=f"{tmp_path}/a.jsonl")}, output=str(tmp_path / pin))
        gm.run(recipe, pin=pin, progress=False)
        files = {
            path.relative_to(tmp_path / pin): path.read_bytes()
            for path in (tmp_path / pin).rglob("*")
            if path.is_file() and path.name not in ("manifest.json", "report.json", "report.html")  # which name folders
        }
        contents.append(files)
    assert contents[0] == contents[1] == contents[2]
