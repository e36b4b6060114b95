"""Keeping a job inside its memory."""

import pytest

from gristmill.engine.machine import memory, resources
from gristmill.engine.machine.memory import MemoryWatch

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    class Machine:
        now = 1000.0
        limit = 10 * GIB
        available = 8 * GIB
        kills = 5

    machine = Machine()
    monkeypatch.setattr(memory, "monotonic", lambda: machine.now)
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
