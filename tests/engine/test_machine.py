"""Cores and memory as the kernel's limits have them, from control groups made up for the test.

Keeping a job inside its memory.
"""

import math
import os
import subprocess
import sys
from collections import Counter

import pytest

import gristmill as gm
from gristmill.engine import machine as pinning
from gristmill.engine import machine as resources
from gristmill.engine.machine import MemoryWatch, choose_places, find_nodes, parse_cpu_list, parse_pin

GIB = 1 << 30


class World:
    """A fake /proc and a fake /sys/fs/cgroup."""

    def __init__(self, root):
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()

    def is_in(self, *lines):
        (self.proc / "self/cgroup").write_text("\n".join(lines) + "\n")

    def group(self, path, **files):
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")

    def quota(self):
        return resources.read_cpu_quota(self.proc, self.cgroups)

    def limit(self):
        return resources.read_memory_limit(self.proc, self.cgroups)

    def available(self):
        return resources.read_memory_available(self.proc, self.cgroups)

    def kills(self):
        return resources.count_oom_kills(self.proc, self.cgroups)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_read_machine_memory", lambda: (64 * GIB, 48 * GIB))
    return World(tmp_path)


def test_no_control_groups_at_all(world):
    assert world.quota() == math.inf
    assert world.limit() == 64 * GIB
    assert world.available() == 48 * GIB
    assert world.kills() == 0


def test_v2_limits(world):
    world.is_in("0::/jobs/mine")
    world.group(
        "jobs/mine",
        cpu_max="150000 100000",
        memory_max=8 * GIB,
        memory_current=3 * GIB,
        memory_stat=f"anon {2 * GIB}\ninactive_file {GIB}",
        memory_events="low 0\noom 2\noom_kill 2",
    )
    assert world.quota() == 1.5
    assert world.limit() == 8 * GIB
    assert world.available() == 6 * GIB  # the page cache can be dropped
    assert world.kills() == 2


def test_v2_without_limits(world):
    world.is_in("0::/jobs/mine")
    world.group("jobs/mine", cpu_max="max 100000", memory_max="max", memory_current=3 * GIB, memory_events="oom_kill 0")
    assert world.quota() == math.inf
    assert world.limit() == 64 * GIB
    assert world.available() == 48 * GIB


def test_v2_limits_of_ancestors_count(world):
    """A pod may be limited where its containers are not."""
    world.is_in("0::/pod/container/process")
    world.group(
        "pod", cpu_max="50000 100000", memory_max=4 * GIB, memory_current=3 * GIB, memory_stat="inactive_file 0"
    )
    world.group("pod/container", cpu_max="max 100000", memory_max=16 * GIB, memory_current=GIB, memory_stat="anon 1")
    world.group("pod/container/process", cpu_max="200000 100000", memory_max="max", memory_current=GIB)
    assert world.quota() == 0.5
    assert world.limit() == 4 * GIB
    assert world.available() == GIB


def test_v1_limits(world):
    world.is_in("5:cpu,cpuacct:/docker/ab", "4:memory:/docker/ab", "1:name=systemd:/docker/ab")
    world.group("cpu,cpuacct/docker/ab", cpu_cfs_quota_us=250000, cpu_cfs_period_us=100000)
    world.group(
        "memory/docker/ab",
        memory_limit_in_bytes=2 * GIB,
        memory_usage_in_bytes=GIB,
        memory_stat=f"cache 5\ntotal_inactive_file {GIB // 2}",
        memory_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3",
    )
    assert world.quota() == 2.5
    assert world.limit() == 2 * GIB
    assert world.available() == 2 * GIB - GIB // 2
    assert world.kills() == 3


def test_v1_linked_by_the_controllers_own_name(world):
    world.is_in("5:cpu,cpuacct:/docker/ab")
    world.group("cpu/docker/ab", cpu_cfs_quota_us=300000, cpu_cfs_period_us=100000)
    assert world.quota() == 3.0


def test_v1_without_limits(world):
    """No limit is a number near 2^63, and a quota of -1."""
    world.is_in("5:cpu:/a", "4:memory:/a")
    world.group("cpu/a", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    world.group("memory/a", memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=GIB, memory_stat="cache 1")
    assert world.quota() == math.inf
    assert world.limit() == 64 * GIB
    assert world.available() == 48 * GIB


def test_v1_limits_of_ancestors_count(world):
    world.is_in("4:memory:/a/b/c")
    for path, limit, usage in [("a", 8, 7), ("a/b", 4, 2), ("a/b/c", 16, 1)]:
        world.group(
            f"memory/{path}",
            memory_limit_in_bytes=limit * GIB,
            memory_usage_in_bytes=usage * GIB,
            memory_stat="total_inactive_file 0",
        )
    assert world.limit() == 4 * GIB
    assert world.available() == GIB


def test_path_of_the_host_inside_a_container(world):
    """The path leads nowhere here; what is mounted at the root is our own group."""
    world.is_in("4:memory:/docker/of-the-host", "0::/../../elsewhere")
    world.group("memory", memory_limit_in_bytes=GIB, memory_usage_in_bytes=0, memory_stat="cache 1")
    assert world.limit() == GIB


def test_hybrid_of_v1_and_v2(world):
    world.is_in("4:memory:/a", "0::/b")
    world.group("memory/a", memory_limit_in_bytes=3 * GIB, memory_usage_in_bytes=GIB, memory_stat="cache 1")
    world.group("unified/b", cpu_max="100000 100000")
    assert world.limit() == 3 * GIB
    assert world.quota() == 1.0


def test_more_used_than_allowed_is_no_room(world):
    world.is_in("0::/a")
    world.group("a", memory_max=GIB, memory_current=2 * GIB, memory_stat="inactive_file 0")
    assert world.available() == 0


def test_kernel_without_group_counts_says_it_for_the_machine(world):
    (world.proc / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert world.kills() == 7


def test_innermost_group_counts_its_own_kills(world):
    world.is_in("0::/a/b")
    world.group("a", memory_events="oom_kill 9")
    world.group("a/b", memory_events="oom_kill 1")
    assert world.kills() == 1


@pytest.mark.parametrize("text", ["", "0::/", "0::/gone", "4:memory:/gone", "1:name=systemd:/"])
def test_groups_that_say_nothing(world, text):
    (world.proc / "self/cgroup").write_text(text)
    assert world.limit() == 64 * GIB
    assert world.quota() == math.inf
    assert world.kills() == 0


@pytest.mark.parametrize(
    ("cpus", "cores", "quota", "expected"),
    [
        (8, 4, math.inf, 4),
        (2, 4, math.inf, 2),
        (8, 8, 1.5, 2),
        (8, 8, 0.1, 1),
        (64, 32, 10.0, 10),
        (1, 1, math.inf, 1),
        (4, 0, math.inf, 1),
    ],
)
def test_number_of_workers_is_the_smallest(cpus, cores, quota, expected):
    assert resources.choose_num_workers(cpus, cores, quota) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_usable_cpus_follow_the_affinity():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert resources.find_usable_cpus() == [min(before)]
        assert resources.count_physical_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert sorted(resources.find_usable_cpus()) == sorted(before)


def test_hyperthreads_come_last(tmp_path, monkeypatch):
    """One of each physical core first, so that two pinned workers do not share one."""
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    cpus = resources.find_usable_cpus(tmp_path)
    assert set(cpus[:2]) == {0, 1}
    assert set(cpus[2:]) == {2, 3}
    assert resources.count_physical_cores(tmp_path) == 2


def test_size_and_time_of_a_process():
    assert resources.read_process_bytes(os.getpid()) > 1 << 20
    assert resources.read_process_cpu_seconds(os.getpid()) > 0


def test_process_that_is_gone_has_no_size():
    assert resources.read_process_bytes(2**22 + 17) == 0
    assert resources.read_process_cpu_seconds(2**22 + 17) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_container_without_proc(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_PROC", tmp_path)
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    assert resources.read_memory_limit(tmp_path) > 0
    assert resources.read_memory_available(tmp_path) > 0
    assert resources.read_process_use(os.getpid()) == (0.0, 0)


def test_this_machine_makes_sense():
    assert 0 < resources.read_memory_limit() <= 1 << 50
    assert 0 <= resources.read_memory_available() <= resources.read_memory_limit()
    assert resources.read_cpu_quota() > 0
    assert resources.count_oom_kills() >= 0
    assert resources.count_physical_cores() >= 1


@pytest.fixture
def machine(monkeypatch):
    class Machine:
        now = 1000.0
        limit = 10 * GIB
        available = 8 * GIB
        kills = 5

    machine = Machine()
    monkeypatch.setattr(resources, "monotonic", lambda: machine.now)
    monkeypatch.setattr(resources, "read_memory_limit", lambda: machine.limit)
    monkeypatch.setattr(resources, "read_memory_available", lambda: machine.available)
    monkeypatch.setattr(resources, "count_oom_kills", lambda: machine.kills)
    return machine


def test_looks_once_a_second(machine):
    watch = MemoryWatch()
    assert not watch.is_due()
    machine.now += 1.1
    assert watch.is_due()
    assert not watch.is_due()


@pytest.mark.parametrize(
    ("worker_bytes", "wanted", "most"),
    [(GIB, 4, 4), (GIB, 100, 9), (4 * GIB, 8, 3), (20 * GIB, 8, 1), (0, 8, 8), (1, 8, 8)],
)
def test_room_for_workers_of_a_size(machine, worker_bytes, wanted, most):
    """One is there already; what is available is never all used."""
    room = MemoryWatch().count_fitting_workers(worker_bytes, wanted)
    assert 1 <= room <= most
    assert room * worker_bytes <= machine.available + worker_bytes


def test_no_room_is_room_for_one(machine):
    machine.available = 0
    assert MemoryWatch().count_fitting_workers(GIB, 8) == 1


def test_worker_is_too_large_above_its_share_and_its_growth(machine):
    watch = MemoryWatch()
    assert watch.is_too_large(6 * GIB, GIB, 2)
    assert not watch.is_too_large(3 * GIB, GIB, 2)  # it has grown, and there is room
    assert not watch.is_too_large(6 * GIB, 5 * GIB, 2)  # it was made that large
    assert not watch.is_too_large(6 * GIB, GIB, 1)


def test_memory_is_short_near_the_limit_but_not_all_the_time(machine):
    watch = MemoryWatch()
    machine.now += 10
    assert not watch.is_short()
    machine.available = GIB // 10
    assert watch.is_short()
    assert not watch.is_short()  # the worker that leaves needs a moment
    machine.now += 10
    assert watch.is_short()


def test_kernels_kills_are_seen_once(machine):
    watch = MemoryWatch()
    assert not watch.has_oom_killer_fired()
    machine.kills += 2
    assert watch.has_oom_killer_fired()
    assert not watch.has_oom_killer_fired()


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process choose its CPUs")


@pytest.fixture(autouse=True)
def permitted(monkeypatch):
    """A system that permits everything, whatever the one that runs the tests does."""
    monkeypatch.setattr(pinning, "_can_bind_cpus", lambda: True)


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
    assert places == ((0, 1, 2, 3), (4, 5, 6, 7)) * 4


def test_workers_follow_the_number_of_usable_cpus(nodes):
    """A mask leaves six CPUs of one node and two of the other: three workers here for each one there."""
    pinned = choose_places("numa", [0, 1, 2, 3, 4, 5, 8, 9], nodes(node0="0-7", node1="8-15"))
    here, there = (0, 1, 2, 3, 4, 5), (8, 9)
    assert Counter(pinned.places) == {here: 6, there: 2}
    assert Counter(pinned.places[:4]) == {here: 3, there: 1}
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
    monkeypatch.setattr(pinning, "_can_bind_cpus", lambda: False)
    for pin in ("cores", "numa"):
        assert choose_places(pin, [0, 1], folder).places == ()
        assert "not pinned" in choose_places(pin, [0, 1], folder).note


def test_cores_and_none():
    assert choose_places("cores", [2, 0]).places == ((2,), (0,))
    assert choose_places("none", [2, 0]) == pinning.Pinning()


@pytest.mark.parametrize(("value", "pin"), [(True, "cores"), (False, "none"), ("numa", "numa")], ids=str)
def test_words_and_truth_values(value, pin):
    assert parse_pin(value) == pin


def test_a_wrong_word_is_refused():
    with pytest.raises(gm.errors.UsageError, match="numa"):
        gm.parallel_map(abs, [1], pin="nuna")


@needs_linux
def test_workers_are_bound_to_their_place(monkeypatch):
    cpu = max(os.sched_getaffinity(0))
    monkeypatch.setattr(pinning, "choose_places", lambda pin, cpus: pinning.Pinning(((cpu,),)))
    assert gm.parallel_map(lambda _: os.sched_getaffinity(0), [0], workers=1, pin="numa") == [{cpu}]


@needs_linux
def test_a_place_that_was_taken_away_binds_nothing(monkeypatch):
    monkeypatch.setattr(pinning, "choose_places", lambda pin, cpus: pinning.Pinning(((4095,),)))
    cpus = os.sched_getaffinity(0)
    assert gm.parallel_map(lambda _: os.sched_getaffinity(0), [0], workers=1, pin="cores") == [cpus]


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
