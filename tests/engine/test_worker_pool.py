"""Workers that serve one job after another: what is kept, what is replaced, and that no job sees another's past."""

import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import closing
from functools import partial

import pytest
from gristmill_testing.simulation import Clock, Events, SimulatedBackend, SimulatedMemory, make_pool
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import WorkerDiedError
from gristmill.engine.failure_report import FinalFailure
from gristmill.engine.observer import EventLog, Observer
from gristmill.engine.parallel_run import make_pool as make_real_pool
from gristmill.engine.scheduler import Policy, Scheduler
from gristmill.engine.tasks import Task, run_tasks
from gristmill.engine.worker.job import Job


def read_pid(task, context):
    return os.getpid()


def fail_setup():
    raise ValueError("no set-up")


def die_always(task, context):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def pool():
    with make_real_pool("processes", keeps_workers=True) as pool:
        yield pool


def run(pool, function=read_pid, num_tasks=4, *, workers=2, **options):
    tasks = [Task(f"task {number}", number) for number in range(num_tasks)]
    options = {"runs_user_code": False, "progress": False, **options}
    return [result for _, result in run_tasks(function, tasks, workers=workers, pool=pool, **options)]


def has_ended(pid):
    """Wait for the end of a process of this one."""
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_jobs_share_their_workers(pool):
    first = set(run(pool, workers=1))
    assert set(run(pool, workers=1)) == first
    assert len(first) == 1


def test_pool_ends_its_workers():
    with make_real_pool("processes", keeps_workers=True) as pool:
        pids = run(pool)
    assert all(map(has_ended, pids))


def test_code_of_the_user_has_workers_of_its_own(pool):
    """They have run nothing before, and run nothing afterwards."""
    before = set(run(pool))
    users = set(run(pool, runs_user_code=True))
    other_users = set(run(pool, runs_user_code=True))
    after = set(run(pool))
    assert before.isdisjoint(users)
    assert users.isdisjoint(other_users)
    assert after.isdisjoint(users | other_users)
    assert all(map(has_ended, users | other_users))


def test_workers_that_were_started_ahead_are_used(pool, tmp_path):
    """By a job of the user's code too: they have only imported what the first job names."""
    pool.start_ahead(1, Job(read_pid, runs_user_code=False))
    log = EventLog(tmp_path / "events.jsonl")
    run(pool, workers=1, runs_user_code=True, events=log)
    assert '"worker_reused"' in (tmp_path / "events.jsonl").read_text()
    run(pool, workers=1, runs_user_code=True, events=log)
    assert (tmp_path / "events.jsonl").read_text().count('"worker_started"') == 1


def test_worker_killed_between_two_jobs(pool):
    [pid] = set(run(pool, workers=1))
    os.kill(pid, signal.SIGKILL)
    [other] = set(run(pool, workers=1))
    assert other != pid


def test_job_that_is_left_early(pool):
    """Its busy workers are killed. The next job is not disturbed by what they would have sent."""
    tasks = (Task(f"task {number}", number) for number in range(1000))
    with closing(run_tasks(read_pid, tasks, workers=2, pool=pool, runs_user_code=False, progress=False)) as results:
        next(results)
    assert len(run(pool, num_tasks=20)) == 20


def test_job_inside_a_job(pool):
    """It gets workers of its own, and the outer job keeps its own."""
    outer = run_tasks(
        read_pid, [Task("a", 0), Task("b", 1)], workers=1, pool=pool, runs_user_code=False, progress=False
    )
    with closing(outer):
        _, first = next(outer)
        inner = set(run(pool, workers=1))
        _, second = next(outer)
    assert first == second
    assert inner.isdisjoint({first})


def test_set_up_that_fails_does_not_spoil_the_next_job(pool):
    run(pool)
    with pytest.raises(ValueError, match="no set-up"):
        run(pool, setup=fail_setup)
    assert len(run(pool)) == 4


def test_job_that_ends_while_a_worker_is_being_set_up(pool, tmp_path):
    """The worker is kept. What it says about the old job is not taken for the new one."""
    released = tmp_path / "go"
    first_worker = tmp_path / "first"

    def set_up(context_folder=str(tmp_path)):
        import os
        import time

        try:
            os.mkdir(os.path.join(context_folder, "first"))
        except FileExistsError:  # the second worker
            while not os.path.exists(os.path.join(context_folder, "go")):
                time.sleep(0.01)

    pids = run(pool, num_tasks=2, setup=set_up, retries=0)
    assert len(set(pids)) == 1
    assert first_worker.exists()
    released.touch()
    assert len(run(pool, num_tasks=8)) == 8


def test_isolated_runs_use_new_processes(pool, tmp_path):
    """An item that ends every worker is blamed only after it has run alone, in processes that did nothing else."""
    before = set(run(pool))
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(WorkerDiedError):
        run(pool, die_always, 1, events=log)
    events = (tmp_path / "events.jsonl").read_text().splitlines()
    isolated = [line for line in events if '"isolated_run"' in line]
    assert len(isolated) == 3
    assert all(str(pid) not in line for pid in before for line in isolated)
    assert all(map(has_ended, before))
    assert len(run(pool)) == 4


def test_state_of_a_job_is_freed(pool):
    """A worker without a job holds nothing of the last one."""

    def load():
        import weakref

        class Model:
            pass

        model = Model()
        sys.modules["_loaded_model"] = weakref.ref(model)
        return model

    def is_alive(task, context):
        return sys.modules["_loaded_model"]() is not None

    assert run(pool, is_alive, 1, workers=1, setup=load) == [True]
    assert run(pool, is_alive, 1, workers=1) == [False]


def test_set_up_runs_for_each_job(pool):
    def give(value):
        return value

    def read_state(task, context):
        return context.state

    assert run(pool, read_state, 2, workers=1, setup=partial(give, "first")) == ["first"] * 2
    assert run(pool, read_state, 2, workers=1, setup=partial(give, "second")) == ["second"] * 2


def test_size_after_set_up_is_measured_for_each_job():
    """The same worker is larger in its second job from the start. It has not grown there, so it is not killed."""
    clock = Clock()
    with clock.installed():
        backend = SimulatedBackend(random.Random(0), clock, {})
        pool = make_pool(backend, keeps_workers=True)
        policy = Policy(workers=1, chunk_size=1, max_growth_bytes=50)
        for size in (100, 500, 100):
            memory = SimulatedMemory(sizes={1: size})
            observer = Observer("job", None, None, Events())
            scheduler = Scheduler(pool, Job(abs, runs_user_code=False), range(9), policy, observer, memory=memory)
            assert dict(scheduler.outcomes()) == {index: ("result", index) for index in range(9)}
        assert backend.num_starts == 1


@given(
    jobs=st.lists(
        st.tuples(st.lists(st.sampled_from(["ok", "raise", "die once", "die"]), max_size=8), st.booleans()), max_size=5
    ),
    seed=st.integers(0, 2**32),
    outside_kills=st.integers(0, 3),
    num_ahead=st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_law_of_jobs_that_share_workers(jobs, seed, outside_kills, num_ahead):
    """Every item of every job leaves once; code of the user never shares a worker; nothing is left running."""
    plans = {"ok": ["ok"], "raise": ["raise"], "die once": ["die", "ok"], "die": ["die"]}
    clock = Clock()
    with clock.installed():
        backend = SimulatedBackend(random.Random(seed), clock, {}, outside_kills=outside_kills)
        pool = make_pool(backend, keeps_workers=True)
        pool.start_ahead(num_ahead, Job(abs, runs_user_code=False))
        served = {}
        for number, (names, runs_user_code) in enumerate(jobs):
            backend._plans, backend.runs = {index: plans[name] for index, name in enumerate(names)}, {}
            job = Job(abs, runs_user_code=runs_user_code)
            scheduler = Scheduler(
                pool, job, range(len(names)), Policy(workers=3, chunk_size=1), Observer("job", None, None, Events())
            )
            outcomes = list(scheduler.outcomes())
            assert Counter(index for index, _ in outcomes) == Counter(range(len(names)))
            for index, value in outcomes:
                assert isinstance(value, FinalFailure) == (names[index] in ("raise", "die"))
            for worker in backend.users:
                served.setdefault(worker, set()).add((number, runs_user_code))
            backend.users.clear()
        pool.close(at_once=False)
    for uses in served.values():
        assert len(uses) == 1 or not any(runs_user_code for _, runs_user_code in uses)
    assert backend.workers == []


@given(
    jobs=st.lists(
        st.tuples(st.lists(st.sampled_from(["ok", "die once", "die"]), max_size=12), st.booleans(), st.integers(1, 8)),
        min_size=1,
        max_size=5,
    ),
    slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    node_changes=st.lists(st.integers(0, 2), max_size=4),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_law_of_workers_that_wait_for_a_place(jobs, slots, node_changes, seed):
    """Jobs of any size end on a cluster with too few places, whoever is placed first and whichever nodes are lost."""
    plans = {"ok": ["ok"], "die once": ["die", "ok"], "die": ["die"]}
    clock = Clock()
    with clock.installed():
        places = {f"node {number}": num_slots for number, num_slots in enumerate(slots)}
        backend = SimulatedBackend(
            random.Random(seed), clock, {}, nodes=list(places), slots=places, node_changes=node_changes
        )
        pool = make_pool(backend, keeps_workers=True)
        for names, runs_user_code, num_workers in jobs:
            backend._plans, backend.runs = {index: plans[name] for index, name in enumerate(names)}, {}
            scheduler = Scheduler(
                pool,
                Job(abs, runs_user_code=runs_user_code),
                range(len(names)),
                Policy(workers=num_workers, chunk_size=1),
                Observer("job", None, None, Events()),
            )
            outcomes = list(scheduler.outcomes())
            assert Counter(index for index, _ in outcomes) == Counter(range(len(names)))
            assert all(isinstance(value, FinalFailure) == (names[index] == "die") for index, value in outcomes)
        pool.close(at_once=False)
