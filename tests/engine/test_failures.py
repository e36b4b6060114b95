"""Suspects run in isolation, and only the guilty are blamed."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from gristmill_testing.simulation import Clock, Events, SimulatedBackend, make_pool, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.engine.observer import Observer
from gristmill.engine.scheduler import Policy, Scheduler
from gristmill.engine.worker.job import Job

JOB = Job(abs)


def test_a_chunk_that_waited_behind_a_death_is_not_to_blame():
    """One item ends its worker twice while another one waits there: that one is run once, when it is its turn."""
    plans = {index: ["ok"] for index in range(12)} | {5: ["die", "die", "ok"]}
    for seed in range(40):
        outcomes, backend, _ = simulate(random.Random(seed), plans, JOB, Policy(workers=1, chunk_size=1), max_chunks=2)
        assert sorted(outcomes) == [(index, ("result", index)) for index in plans]
        assert backend.runs == dict.fromkeys(plans, 1) | {5: 3}


def test_suspect_runs_with_no_other_worker_around():
    plans = {index: ["die"] if index == 3 else ["ok"] for index in range(30)}
    _, backend, events = simulate(random.Random(1), plans, JOB, Policy(workers=4, chunk_size=1))
    assert backend.runs[3] == 6
    assert backend.concurrency[3][3:] == [1, 1, 1]
    assert len(events.named("isolated_run")) == 3


def test_suspect_runs_alone_on_its_node_while_others_work():
    """Each time on another node than the last. On one machine everybody waits, and fewer items end before it."""
    plans = {index: ["die"] if index == 3 else ["ok"] for index in range(300)}
    nodes = ["a", "b", "c"]
    outcomes, backend, events = simulate(random.Random(1), plans, JOB, Policy(workers=6, chunk_size=1), nodes=nodes)
    assert backend.concurrency[3][3:] == [1, 1, 1]
    deaths = [event["node"] for event in events.named("worker_died") if event["item"] == 3]
    assert all(node != after for node, after in pairwise(deaths[3:]))
    alone, _, _ = simulate(random.Random(1), plans, JOB, Policy(workers=6, chunk_size=1))
    positions = [[index for index, _ in ended].index(3) for ended in (outcomes, alone)]
    assert positions[0] > positions[1]
    assert len(events.named("isolated_run")) == 3


def test_suspects_do_not_keep_the_scheduler_spinning():
    """While a suspect runs alone, others wait, also those whose retry is due. Waiting costs no processor time."""
    plans = {0: ["die"], 1: ["raise", "ok"], **{index: ["ok"] for index in range(2, 6)}}
    for seed in range(30):
        _, backend, _ = simulate(random.Random(seed), plans, JOB, Policy(workers=2, chunk_size=1, retries=1))
        assert backend.num_waits_for_nothing == 0


def test_suspect_that_hangs_alone_does_not_spin():
    """The isolated run takes long, while another item's retry has become due."""
    plans = {0: ["raise", "ok"], 1: ["die", "die", "die", "hang"]}
    waits = []

    class Watching(SimulatedBackend):
        def wait(self, timeout):
            waits.append(timeout)
            if len(waits) > 300:
                self._plans[1] = ["ok"]
            return super().wait(timeout)

    clock = Clock()
    with clock.installed():
        backend = Watching(random.Random(3), clock, plans)
        policy = Policy(workers=1, chunk_size=1, retries=1)
        scheduler = Scheduler(make_pool(backend), JOB, range(2), policy, Observer("job", 2, None, Events()), total=2)
        assert dict(scheduler.outcomes()) == {0: ("result", 0), 1: ("result", 1)}
    idle = waits[50:290]
    assert sum(timeout <= 0 for timeout in idle) < 10, "it waits for nothing, again and again"


def test_backoff_grows():
    plans = {0: ["raise", "raise", "raise", "ok"]}
    outcomes, backend, events = simulate(random.Random(0), plans, JOB, Policy(workers=1, retries=3))
    assert dict(outcomes) == {0: ("result", 0)}
    assert len(events.named("item_retried")) == 3
    assert backend.num_waits_for_nothing == 0


@given(poison=st.integers(0, 99), seed=st.integers(0, 2**32), workers=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_probe_finds_the_poison_record(poison, seed, workers):
    """The guilty item is taken apart alone, and run again without the record that kills; others are not touched."""

    class Backend(SimulatedBackend):
        def plan(self, index):
            if index != 1:
                return "ok"
            chunk = next((chunk for w in self.workers for chunk in w.chunks if index in chunk.indexes), None)
            records = chunk.items[list(chunk.indexes).index(index)] if chunk else []
            return "die" if poison in records else "ok"

    def on_poison(records, failure, position):
        assert failure.kind == "worker_died"
        suspects = list(records)
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            outcome = yield half
            suspects = half if hasattr(outcome, "kind") else suspects[len(suspects) // 2 :]
        return [record for record in records if record not in suspects]

    items = [list(range(1000, 1100)), list(range(100)), list(range(2000, 2100))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gristmill_testing.simulation.SimulatedBackend", Backend)
        outcomes, _, _ = simulate(
            random.Random(seed),
            {key: ["ok"] for key in range(3)},
            JOB,
            Policy(workers=workers, chunk_size=1),
            items=items,
            on_poison=on_poison,
        )
    assert Counter(index for index, _ in outcomes) == Counter(range(3))
    assert dict(outcomes)[1] == ("result", [record for record in range(100) if record != poison])
