"""How many workers a job has."""

import random

from gristmill_testing.simulation import SimulatedMemory, simulate

from gristmill.engine.scheduler import Policy
from gristmill.engine.worker.job import Job

JOB = Job(abs)


def test_recycling_after_some_items():
    plans = {index: ["ok"] for index in range(40)}
    _, backend, events = simulate(random.Random(0), plans, JOB, Policy(workers=1, max_items_per_worker=4))
    assert 10 <= backend.num_starts <= 25  # given-back items count too
    assert events.named("worker_died") == []


def test_worker_that_grew_too_large_is_recycled_between_items():
    """The first worker is too large as soon as it is looked at; what it has been sent is finished first."""
    plans = {index: ["ok"] for index in range(40)}
    memory = SimulatedMemory(too_large=lambda pid: pid == 1)
    outcomes, backend, events = simulate(random.Random(0), plans, JOB, Policy(workers=1, chunk_size=2), memory=memory)
    assert len(outcomes) == 40
    assert backend.num_starts == 2
    assert [event["bytes"] for event in events.named("worker_recycled")] == [1]
    assert events.named("worker_died") == []


def test_memory_that_gets_short_means_fewer_workers():
    plans = {index: ["ok"] for index in range(200)}
    answers = iter([False, False, True, False, True])
    memory = SimulatedMemory(short=lambda: next(answers, False))
    outcomes, _, events = simulate(random.Random(0), plans, JOB, Policy(workers=4, chunk_size=1), memory=memory)
    assert len(outcomes) == 200
    assert [event["workers"] for event in events.named("workers_reduced")] == [3, 2]


def test_memory_that_stays_short_leaves_one_worker():
    plans = {index: ["ok"] for index in range(50)}
    memory = SimulatedMemory(short=lambda: True)
    outcomes, _, events = simulate(random.Random(0), plans, JOB, Policy(workers=3, chunk_size=1), memory=memory)
    assert len(outcomes) == 50
    assert [event["workers"] for event in events.named("workers_reduced")] == [2, 1]


def test_first_worker_is_measured_before_others_are_started():
    """`workers="auto"` with a set-up: only as many as there is room for."""
    plans = {index: ["ok"] for index in range(60)}
    policy = Policy(workers=8, can_resize=True, chunk_size=1)
    memory = SimulatedMemory(room=3)
    _, backend, events = simulate(random.Random(0), plans, Job(abs, setup=dict), policy, memory=memory)
    assert backend.most_workers == 3
    [reduced] = events.named("workers_reduced")
    assert reduced["workers"] == 3
    assert "memory has no room for more" in reduced["reason"]


def test_no_more_workers_than_items():
    plans = {index: ["ok"] for index in range(2)}
    _, backend, _ = simulate(random.Random(0), plans, JOB, Policy(workers=16, chunk_size=1))
    assert backend.num_starts <= 2


def test_no_items_no_workers():
    outcomes, backend, _ = simulate(random.Random(0), {}, JOB, Policy(workers=4))
    assert outcomes == []
    assert backend.num_starts == 0
