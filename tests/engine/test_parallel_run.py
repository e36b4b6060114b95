"""From options to a running job: which backend, how many workers, what is refused."""

import os
import threading
import time

import pytest

import gristmill as gm
from gristmill.engine import machine as resources
from gristmill.engine import observer
from gristmill.engine import parallel_run as launch

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def machine(monkeypatch):
    class Machine:
        cpus = 8
        cores = 8
        quota = float("inf")
        memory = 1 << 40

    machine = Machine()
    monkeypatch.setattr(resources, "find_usable_cpus", lambda: list(range(machine.cpus)))
    monkeypatch.setattr(resources, "count_physical_cores", lambda: machine.cores)
    monkeypatch.setattr(resources, "read_cpu_quota", lambda: machine.quota)
    monkeypatch.setattr(resources, "read_memory_available", lambda: machine.memory)
    return machine


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, 8),
        ({"cpus": 3}, 3),
        ({"cores": 4}, 4),
        ({"quota": 2.0}, 2),
        ({"quota": 0.2}, 1),
        ({"memory": 100 << 20}, 3),
        ({"memory": 0}, 1),
    ],
)
def test_auto_is_the_smallest_of_what_there_is(machine, facts, expected):
    for name, value in facts.items():
        setattr(machine, name, value)
    assert launch.choose_num_workers("auto") == expected


def test_asked_number_is_taken(machine):
    assert launch.choose_num_workers(50) == 50


def test_auto_starts_no_more_than_there_is_work_for(machine):
    """Two items on a machine of eight cores."""
    pids = gm.parallel_map(lambda n: os.getpid(), range(2))
    assert len(set(pids)) <= 2


def test_auto_backend_stays_for_small_jobs():
    """A thousand items of a microsecond need no workers."""
    here = os.getpid()
    assert set(gm.parallel_map(lambda n: os.getpid(), range(1000), backend="auto")) == {here}
    assert set(gm.parallel_map(lambda n: os.getpid(), (n for n in range(100)), backend="auto")) == {here}


def test_auto_backend_leaves_for_large_jobs():
    """Forty items of 100 ms are four seconds: after a few the rest goes to processes. Order and results are kept."""

    def function(n):
        time.sleep(0.1)
        return n, os.getpid()

    results = gm.parallel_map(function, range(40), backend="auto", workers=4)
    assert [n for n, _ in results] == list(range(40))
    here = sum(pid == os.getpid() for _, pid in results)
    assert 1 <= here <= 12


def test_auto_backend_leaves_for_long_inputs_of_unknown_length():
    def function(n):
        time.sleep(0.05)
        return n, os.getpid()

    results = list(gm.parallel_imap(function, (n for n in range(40)), backend="auto", workers=4))
    assert [n for n, _ in results] == list(range(40))
    assert any(pid != os.getpid() for _, pid in results)


@pytest.mark.parametrize(
    ("setup_seconds", "item_seconds", "num_items", "has_length"),
    [
        (3.1, 0.001, 20, True),
        (3.1, 0.001, 20, False),
        (1.2, 0.1, 16, True),  # two workers would halve 1.6 seconds, and each begin with 1.2 seconds
        (0.0, 0.04, 24, True),
    ],
)
def test_auto_backend_stays_where_set_ups_take_longer_than_they_save(
    monkeypatch, setup_seconds, item_seconds, num_items, has_length
):
    """The clock moves only when the job says so. Nothing moves to processes, so there is one set-up."""
    now = [0.0]
    pids = []
    for module in (launch, observer):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def setup():
        pids.append(os.getpid())
        now[0] += setup_seconds

    def work(n, state):
        now[0] += item_seconds
        return n

    items = range(num_items) if has_length else (n for n in range(num_items))
    assert gm.parallel_map(work, items, backend="auto", workers=2, setup=setup) == list(range(num_items))
    assert pids == [os.getpid()]
    assert now[0] == pytest.approx(setup_seconds + num_items * item_seconds), "every item ran here"


def test_auto_backend_measures_items_not_chunks():
    """A chunk of eight items of 0.3 s is more than a second's work too."""

    def function(n):
        time.sleep(0.3)
        return n, os.getpid()

    results = gm.parallel_map(function, range(8), backend="auto", workers=4, chunk_size=8)
    assert [n for n, _ in results] == list(range(8))
    assert any(pid != os.getpid() for _, pid in results), "the whole job was run here"


def test_auto_backend_keeps_numbers_of_failures_across_the_move():
    def function(n):
        time.sleep(0.1)
        if n in (0, 30):
            raise ValueError(n)
        return n

    results = gm.parallel_map(function, range(32), backend="auto", workers=4, on_error="return")
    assert [(n, result.index) for n, result in enumerate(results) if isinstance(result, gm.Failure)] == [
        (0, 0),
        (30, 30),
    ]
    assert results[30].message == "30"


@pytest.mark.parametrize("options", [{"timeout": 30.0}, {"max_items_per_worker": 5}, {"pin": True}], ids=str)
def test_auto_backend_goes_to_processes_for_what_only_they_can(options):
    pids = gm.parallel_map(lambda n: os.getpid(), range(3), backend="auto", workers=1, **options)
    assert os.getpid() not in pids


@pytest.mark.parametrize("backend", ["serial", "threads"])
@pytest.mark.parametrize("options", [{"timeout": 30.0}, {"max_items_per_worker": 5}, {"pin": True}], ids=str)
def test_what_a_backend_cannot_keep_is_refused(backend, options):
    with pytest.raises(gm.errors.UsageError) as caught:
        gm.parallel_map(abs, [1], backend=backend, **options)
    assert caught.value.help


def test_serial_runs_in_the_callers_thread():
    assert set(gm.parallel_map(lambda n: threading.get_ident(), range(5), backend="serial")) == {threading.get_ident()}


def test_threads_are_threads_of_this_process():
    places = gm.parallel_map(lambda n: (os.getpid(), threading.get_ident()), range(5), backend="threads", workers=2)
    assert {pid for pid, _ in places} == {os.getpid()}
    assert threading.get_ident() not in {thread for _, thread in places}
