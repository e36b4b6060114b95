"""The one line that says why a run is slow: each cause from what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.pipeline.monitoring.run_status import RunStatus, WorkerStatus
from gristmill.pipeline.monitoring.status_maker import find_bottleneck


def make_worker(number, state="busy", **facts):
    task = f"part-{number}.jsonl, byte {number * 1000:,}" if state == "busy" else ""
    defaults = {"cpu_share": 0.97, "seconds": 10.0 * number + 3 if state == "busy" else 0.0}
    return WorkerStatus(name=f"process {number}", state=state, task=task, **defaults | facts)


def make_status(workers, **facts):
    defaults = {"done": 10, "total": 100, "num_cpus": 8, "memory_limit": 10**10, "memory_available": 6 * 10**9}
    return RunStatus(
        run="1",
        host="h",
        pid=1,
        backend="processes",
        written=0.0,
        job="stage 1",
        num_workers=len(workers),
        num_busy=sum(worker.state == "busy" for worker in workers),
        workers=workers,
        **defaults | facts,
    )


BUSY = [make_worker(number) for number in range(4)]
WAITING = [make_worker(number, cpu_share=0.2) for number in range(4)]
ONE_BUSY = [make_worker(1), *(make_worker(number, "idle") for number in (2, 3))]


@pytest.mark.parametrize(
    ("status", "cause", "words"),
    [
        (make_status([make_worker(1, "starting")]), "starting", "no worker is ready"),
        (make_status([]), "starting", "no worker is ready"),
        (make_status(BUSY, memory_available=10**8), "memory", "100.0 MB of 10.0 GB are free"),
        (make_status(BUSY, workers_reduced="memory has no room for more"), "memory", "has no room"),
        (make_status(BUSY, seconds_without_progress=99.0), "stalled", "part-3.jsonl, byte 3,000 on process 3"),
        (make_status(ONE_BUSY, done=99), "straggler", "2 workers wait for the last task: part-1.jsonl, byte 1,000"),
        (make_status(ONE_BUSY), "starved", "2 workers wait for tasks that depend on part-1.jsonl"),
        (make_status(ONE_BUSY, parent_cpu_share=0.99), "starved", "main process, which uses 99%"),
        (make_status([make_worker(1, "idle")]), "starved", "no worker has a task"),
        (make_status(WAITING), "reading", "use only 20% of a CPU"),
        (make_status(WAITING, load=20.0), "machine", "load is 20.0 on 8 CPUs"),
        (make_status(WAITING, cpu_pressure=0.72, io_pressure=0.02), "machine", "wait for a CPU 72% of the time"),
        (make_status(WAITING, load=20.0, cpu_pressure=0.05, io_pressure=0.4), "reading", "use only 20% of a CPU"),
        (make_status(WAITING, cpu_pressure=0.3, io_pressure=0.6), "reading", "use only 20% of a CPU"),
        (make_status(BUSY, counts={"store:wait_ms": 600, "store:task_ms": 1000}), "reading", "60% of their time"),
        (make_status(BUSY), "computing", "97% of a CPU each"),
        (make_status([make_worker(1, cpu_share=None)]), "unknown", "nothing was measured"),
    ],
)
def test_each_cause(status, cause, words):
    bottleneck = find_bottleneck(status)
    assert (bottleneck.cause, words in bottleneck.text) == (cause, True), bottleneck
    assert cause == "unknown" or bottleneck.text.startswith(f"{cause}: ")


workers = st.builds(
    WorkerStatus,
    name=st.text(max_size=5),
    state=st.sampled_from(["starting", "idle", "busy"]),
    cpu_share=st.none() | st.floats(0, 64),
    seconds=st.floats(0, 1e6),
    task=st.text(max_size=5),
)


@given(
    st.lists(workers, max_size=5),
    st.none() | st.integers(0, 10),
    st.integers(0, 10),
    st.integers(0, 100),
    st.integers(0, 100),
    st.none() | st.floats(0, 10),
)
def test_every_state_has_one_line(workers, total, done, limit, available, parent):
    status = make_status(
        workers, total=total, done=done, memory_limit=limit, memory_available=available, parent_cpu_share=parent
    )
    assert find_bottleneck(status).text
