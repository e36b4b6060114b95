"""The scheduler and its failure handler over a simulated backend: every item exactly once, and no innocent blamed."""

import random
from collections import Counter

import pytest
from gristmill_testing.simulation import Clock, Events, SimulatedBackend, SimulatedMemory, make_pool, simulate
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.engine.failure_report import FinalFailure
from gristmill.engine.observer import Observer
from gristmill.engine.scheduler import Policy, Scheduler
from gristmill.engine.worker.job import Job

JOB = Job(abs)

PLANS = {
    "innocent": ["ok"],
    "raises once": ["raise", "ok"],
    "raises always": ["raise"],
    "dies once": ["die", "ok"],
    "dies twice": ["die", "die", "ok"],
    "dies always": ["die"],
    "unsendable": ["unsendable"],
    "unreturnable": ["unreturnable"],
    "raises, dies, returns": ["raise", "die", "ok"],
}
KINDS = {
    "raises always": "exception",
    "dies always": "worker_died",
    "unsendable": "unpicklable",
    "unreturnable": "unpicklable",
}

policies = st.builds(
    Policy,
    workers=st.integers(1, 4),
    retries=st.integers(1, 3),
    chunk_size=st.one_of(st.just("auto"), st.integers(1, 8)),
    max_items_per_worker=st.one_of(st.none(), st.integers(1, 5)),
)


def kind(value):
    return value.failure.kind if isinstance(value, FinalFailure) else None


@given(
    names=st.lists(st.sampled_from(list(PLANS)), max_size=25),
    policy=policies,
    seed=st.integers(0, 2**32),
    outside_kills=st.integers(0, 3),
    num_nodes=st.integers(0, 3),
    max_chunks=st.integers(1, 2),
)
@settings(max_examples=400, deadline=None)
def test_every_item_leaves_once_and_no_innocent_is_blamed(names, policy, seed, outside_kills, num_nodes, max_chunks):
    """Whatever happens in whatever order, with up to three workers killed from outside at bad moments."""
    plans = {index: PLANS[name] for index, name in enumerate(names)}
    nodes = [f"node {number}" for number in range(num_nodes)]
    more = {"outside_kills": outside_kills, "nodes": nodes, "max_chunks": max_chunks}
    outcomes, backend, _ = simulate(random.Random(seed), plans, JOB, policy, **more)
    assert Counter(index for index, _ in outcomes) == Counter(range(len(names)))
    values = dict(outcomes)
    for index, name in enumerate(names):
        assert kind(values[index]) == KINDS.get(name), name
        if name not in KINDS:
            assert values[index] == ("result", index)
        if name == "raises always" and not outside_kills:
            assert values[index].failure.attempts == policy.retries + 1
        if name == "dies always":
            assert values[index].failure.attempts >= 6
    assert backend.most_workers <= policy.workers
    assert backend.num_waits_for_nothing == 0
    assert backend.closed or not backend.num_starts


@given(
    names=st.lists(st.sampled_from(["innocent", "hangs once", "hangs always", "dies once"]), max_size=12),
    policy=st.builds(
        Policy,
        workers=st.integers(1, 3),
        retries=st.integers(1, 2),
        chunk_size=st.one_of(st.just("auto"), st.integers(1, 8)),
        timeout=st.just(5.0),
    ),
    seed=st.integers(0, 2**32),
    max_chunks=st.integers(1, 2),
)
@settings(max_examples=200, deadline=None)
def test_late_items_are_found_among_others(names, policy, seed, max_chunks):
    all_plans = {**PLANS, "hangs once": ["hang", "ok"], "hangs always": ["hang"]}
    plans = {index: all_plans[name] for index, name in enumerate(names)}
    outcomes, _, _ = simulate(random.Random(seed), plans, JOB, policy, max_chunks=max_chunks)
    assert Counter(index for index, _ in outcomes) == Counter(range(len(names)))
    for index, value in outcomes:
        assert kind(value) == ("timeout" if names[index] == "hangs always" else None)
        if names[index] == "hangs always":
            assert value.failure.attempts == policy.retries + 1


@given(seed=st.integers(0, 2**32), policy=policies, position=st.integers(0, 9), max_chunks=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_worker_that_dies_while_it_receives_an_item(seed, policy, position, max_chunks):
    """No item had been started, yet it is always the same one that kills: it must be found, not tried for ever."""
    plans = {index: ["die on arrival"] if index == position else ["ok"] for index in range(10)}
    outcomes, backend, _ = simulate(random.Random(seed), plans, JOB, policy, max_chunks=max_chunks)
    assert Counter(index for index, _ in outcomes) == Counter(range(10))
    values = dict(outcomes)
    assert {index: kind(value) for index, value in values.items() if kind(value)} == {position: "worker_died"}
    assert backend.num_starts < 60


@given(
    setup_plans=st.lists(st.sampled_from(["ok", "raise", "die"]), min_size=1, max_size=12),
    last=st.sampled_from(["ok", "raise", "die"]),
    names=st.lists(st.sampled_from(["innocent", "dies once", "dies always"]), min_size=1, max_size=8),
    workers=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_set_ups_that_fail_never_loop(setup_plans, last, names, workers, seed):
    """Either every item leaves once, or the job fails with the set-up's error; after few starts in both cases."""
    plans = {index: PLANS[name] for index, name in enumerate(names)}
    policy = Policy(workers=workers, chunk_size=1)
    try:
        outcomes, backend, _ = simulate(random.Random(seed), plans, JOB, policy, setup_plans=[*setup_plans, last])
    except (ValueError, RuntimeError):
        if {"raise", "die"} & {*setup_plans, last}:
            return
        raise
    assert Counter(index for index, _ in outcomes) == Counter(range(len(names)))
    for index, value in outcomes:
        assert kind(value) == KINDS.get(names[index])
    assert backend.num_starts < 20 * (len(names) + 4)


@given(
    names=st.lists(st.sampled_from(list(PLANS)), max_size=20),
    policy=policies,
    seed=st.integers(0, 2**32),
    outside_kills=st.integers(0, 2),
)
@example(  # the isolated run that ends with the job leaves a worker, and the first item waits for one
    names=["raises once", "dies always", "dies always"], policy=Policy(workers=3, retries=1), seed=1, outside_kills=0
)
@settings(max_examples=200, deadline=None)
def test_first_failing_item_in_order_ends_the_job(names, policy, seed, outside_kills):
    """As `on_error="raise"` uses it: all before the first failing item arrive, whatever failed earlier in time."""
    plans = {index: PLANS[name] for index, name in enumerate(names)}
    failing = [index for index, name in enumerate(names) if name in KINDS]
    clock, held, next_index = Clock(), {}, 0
    with clock.installed():
        backend = SimulatedBackend(random.Random(seed), clock, plans, outside_kills=outside_kills)
        observer = Observer("job", len(names), None, Events())
        scheduler = Scheduler(make_pool(backend), JOB, range(len(names)), policy, observer, total=len(names))
        outcomes = scheduler.outcomes()
        for index, value in outcomes:
            assert index not in held
            held[index] = value
            if isinstance(value, FinalFailure):
                scheduler.end_at(index)
            while next_index in held and not isinstance(held[next_index], FinalFailure):
                next_index += 1
            if next_index in held:
                break
        outcomes.close()
    assert next_index == (failing[0] if failing else len(names))
    assert all(held[index] == ("result", index) for index in range(next_index))
    assert backend.closed or not backend.num_starts


def test_busy_workers_are_sent_the_next_chunk_but_not_the_last_ones():
    plans = {index: ["ok"] for index in range(40)}
    policy = Policy(workers=2, chunk_size=1)
    _, backend, _ = simulate(random.Random(0), plans, JOB, policy, max_chunks=2)
    assert 10 < backend.num_ahead <= 40 - 2 * policy.workers
    _, backend, _ = simulate(random.Random(0), plans, JOB, policy)
    assert not backend.num_ahead


def test_kernel_that_killed_means_fewer_workers_then_out_of_memory():
    """The item's worker is killed by SIGKILL each time, and each time the kernel's count rose."""
    original = SimulatedBackend._death

    def killed(self, worker, cause, signal, item):
        if item == 7:
            cause, signal = "was killed by SIGKILL", "SIGKILL"
        return original(self, worker, cause, signal, item)

    plans = {index: ["die"] if index == 7 else ["ok"] for index in range(20)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedBackend, "_death", killed)
        memory = SimulatedMemory(oom=lambda: True)
        outcomes, _, events = simulate(random.Random(0), plans, JOB, Policy(workers=4, chunk_size=1), memory=memory)
    values = dict(outcomes)
    assert {index: kind(value) for index, value in values.items() if kind(value)} == {7: "out_of_memory"}
    assert values[7].failure.signal == "SIGKILL"
    assert events.named("workers_reduced")
