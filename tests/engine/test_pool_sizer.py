"""How many workers a pool may have, with the memory of a simulated machine."""

import pytest

from gristmill.engine.backend import Died
from gristmill.engine.job_workers import PooledWorker
from gristmill.engine.observer import Observer
from gristmill.engine.pool_sizer import PoolSizer


class Handle:
    name = "process 1"
    pid = 1


class Pool:
    def __init__(self, target):
        self.target = target
        self.workers = []
        self.stopped = []

    def __iter__(self):
        return iter(self.workers)

    def stop_worker(self, worker):
        self.stopped.append(worker)

    def limit_spares(self):
        pass


class Memory:
    is_full = False
    has_killed = True
    num_fitting = 3
    large = False

    def size_of(self, pid):
        return 100 * pid

    def count_fitting_workers(self, worker_bytes, max_workers):
        assert worker_bytes == 100
        return min(self.num_fitting, max_workers)

    def is_due(self):
        return True

    def is_short(self):
        return self.is_full

    def is_too_large(self, size, size_after_setup, num_workers):
        return self.large

    def has_oom_killer_fired(self):
        return self.has_killed


def make(memory, *, target=4, max_workers=None):
    pool = Pool(target)
    observer = Observer("job", None, None, None)
    return pool, PoolSizer(pool, memory, observer, max_workers=max_workers, max_growth_bytes=None)


def make_worker(*, is_ready=True):
    return PooledWorker(Handle(), 0, 0.0, is_ready=is_ready)


def test_first_worker_decides_how_many_fit():
    pool, sizer = make(Memory(), target=1, max_workers=8)
    worker = make_worker()
    sizer.measure(worker)
    assert (pool.target, worker.bytes_after_setup) == (3, 100)
    pool.target = 2
    sizer.measure(make_worker())
    assert pool.target == 2


def test_a_number_that_the_user_chose_is_kept():
    pool, sizer = make(Memory())
    sizer.measure(make_worker())
    assert pool.target == 4


def test_short_memory_takes_workers_one_by_one_down_to_one():
    memory = Memory()
    memory.is_full = True
    pool, sizer = make(memory, target=3)
    targets = []
    for _ in range(4):
        sizer.check()
        targets.append(pool.target)
    assert targets == [2, 1, 1, 1]


def test_workers_lost_to_an_item_are_restored_after_it():
    pool, sizer = make(Memory(), target=3)
    sizer.shrink_for(7)
    sizer.shrink_for(7)
    sizer.shrink_for(7)
    assert pool.target == 1
    sizer.restore_after(8)
    assert pool.target == 1
    sizer.restore_after(7)
    assert pool.target == 3
    sizer.restore_after(7)
    assert pool.target == 3


@pytest.mark.parametrize(
    ("signal", "has_killed", "expected"), [("SIGKILL", True, True), ("SIGKILL", False, False), ("SIGSEGV", True, False)]
)
def test_only_the_kernels_counter_tells_an_out_of_memory_kill(signal, has_killed, expected):
    memory = Memory()
    memory.has_killed = has_killed
    _, sizer = make(memory)
    assert sizer.was_killed_by_kernel(Died(Handle(), "was killed", signal)) is expected


def test_large_workers_retire_and_idle_ones_stop():
    memory = Memory()
    memory.large = True
    pool, sizer = make(memory)
    idle, starting = make_worker(), make_worker(is_ready=False)
    pool.workers = [idle, starting]
    sizer.check()
    assert (idle.is_retiring, starting.is_retiring) == (True, False)
    assert pool.stopped == [idle]


def test_without_processes_memory_is_ignored():
    pool, sizer = make(None)
    sizer.measure(make_worker())
    sizer.check()
    assert pool.target == 4
    assert not sizer.was_killed_by_kernel(Died(Handle(), "was killed", "SIGKILL"))
