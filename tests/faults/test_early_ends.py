"""The caller leaves before the end: workers end, files close, errors are the caller's own."""

import gc
import itertools
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from gristmill_testing import scripts
from gristmill_testing.watching import open_files, sign, wait_for_file, wait_until

import gristmill as gm
from gristmill.engine.tasks import Task, run_tasks

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]


_others = set()


@pytest.fixture(autouse=True)
def _look_for_others():
    """Tests of other files leave processes of their libraries behind, such as resource trackers."""
    _others.clear()
    _others.update(psutil.Process().children())


def children():
    return [child for child in psutil.Process().children() if child not in _others]


def slow_after(folder, number):
    def function(n):
        if n >= number:
            sign(folder, f"started-{n}")
            time.sleep(3600)
        return n

    return function


def test_close_ends_the_workers(folder):
    before = open_files()
    results = gm.parallel_imap(slow_after(folder, 3), itertools.count(), workers=2, chunk_size=1)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    wait_for_file(folder / "started-3")
    assert len(children()) == 2
    results.close()
    assert children() == []
    assert open_files() == before
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.full
@pytest.mark.parametrize("ordered", [True, False])
def test_garbage_collection_ends_the_workers(ordered):
    gc.collect()  # what earlier tests left
    before = open_files()
    results = gm.parallel_imap(lambda n: n, itertools.count(), workers=2, ordered=ordered)
    next(results)
    assert len(children()) > 0
    del results
    gc.collect()
    assert children() == []
    assert open_files() == before


@pytest.mark.full
def test_cycle_with_the_results_is_collected():
    class Holder:
        pass

    holder = Holder()
    holder.results = gm.parallel_imap(lambda n: n, itertools.count(), workers=1)
    holder.self = holder
    next(holder.results)
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None
    assert children() == []


@pytest.mark.full
def test_never_iterated_starts_nothing(tmp_path):
    before = open_files()
    results = gm.parallel_imap(lambda n: n, range(10), workers=2, progress=gm.EventLog(tmp_path / "events.jsonl"))
    assert children() == []
    del results
    gc.collect()
    assert open_files() == before, "the event log was opened and not closed"


@pytest.mark.full
def test_consumer_that_raises():
    def consume():
        for result in gm.parallel_imap(lambda n: n, itertools.count(), workers=2):
            if result == 5:
                raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match="my own"):
        consume()
    gc.collect()
    assert children() == []


def test_break_out_of_the_loop(folder):
    results = gm.parallel_imap(slow_after(folder, 4), itertools.count(), workers=2, chunk_size=1)
    for result in results:
        if result == 3:
            break
    results.close()
    assert children() == []


@pytest.mark.parametrize("backend", ["serial", "threads", "processes", "auto"])
def test_input_that_raises(backend):
    """The caller's own error comes out, not a failure of any item, and what came before it is right."""

    def items():
        yield from range(5)
        raise OSError("the input is broken")

    results = gm.parallel_imap(lambda n: n, items(), workers=2, chunk_size=1, backend=backend, on_error="return")
    got = []
    with pytest.raises(OSError, match="the input is broken"):
        got.extend(results)
    assert got == list(range(len(got)))
    assert children() == []


def test_failure_ends_the_other_workers_at_once(folder):
    def function(n):
        if n == 0:
            wait_for_file(folder / "started-1")
            raise ValueError("enough")
        sign(folder, f"started-{n}")
        time.sleep(3600)

    with pytest.raises(ValueError, match="enough"):
        gm.parallel_map(function, range(2), workers=2, chunk_size=1)
    assert children() == []


@pytest.mark.full
def test_failure_stops_taking_from_the_input():
    """An endless input, and a function that fails soon."""
    taken = []

    def items():
        for n in itertools.count():
            taken.append(n)
            yield n

    def function(n):
        if n == 10:
            raise ValueError("enough")
        return n

    results = gm.parallel_imap(function, items(), workers=2, chunk_size=1)
    with pytest.raises(ValueError, match="enough"):
        list(results)
    assert len(taken) < 2000


@pytest.mark.full
def test_threads_do_not_go_on_after_the_call_has_failed(folder):
    """Threads cannot be killed, but between two items they can be told."""
    started = []

    def function(n):
        started.append(n)
        if n == 0:
            raise ValueError("enough")
        if n < 1000:
            time.sleep(0.001)
        return n

    with pytest.raises(ValueError, match="enough"):
        gm.parallel_map(function, range(20_000), workers=2, chunk_size=10_000, backend="threads")
    at_the_end = len(started)

    def threads():
        return [thread for thread in threading.enumerate() if thread.name.startswith("gristmill")]

    wait_until(lambda: not threads(), "the end of the threads")
    assert len(started) - at_the_end <= 4, "the rest of the chunks was run after the call had failed"


@pytest.mark.full
def test_closing_tasks_ends_the_workers(folder):
    def function(task, context):
        if task.payload >= 2:
            sign(folder, f"started-{task.payload}")
            time.sleep(3600)
        return task.payload

    results = run_tasks(function, [Task(str(n), n) for n in range(5)], workers=2)
    next(results)
    next(results)
    wait_for_file(folder / "started-2")
    results.close()
    assert children() == []


@pytest.mark.full
def test_failing_task_ends_the_workers(folder):
    def function(task, context):
        if task.payload == 0:
            wait_for_file(folder / "started-1")
            raise ValueError("enough")
        sign(folder, f"started-{task.payload}")
        time.sleep(3600)

    with pytest.raises(ValueError, match="enough"):
        list(run_tasks(function, [Task(str(n), n) for n in range(2)], workers=2, retries=0))
    assert children() == []


@pytest.mark.full
def test_two_jobs_interleaved():
    """Two iterators, taken from in turn, in one thread."""
    squares = gm.parallel_imap(lambda n: n * n, itertools.count(), workers=1)
    cubes = gm.parallel_imap(lambda n: n**3, itertools.count(), workers=1)
    assert [(next(squares), next(cubes)) for _ in range(20)] == [(n * n, n**3) for n in range(20)]
    squares.close()
    assert [next(cubes) for _ in range(5)] == [n**3 for n in range(20, 25)]
    cubes.close()


@pytest.mark.full
def test_jobs_from_several_threads_of_the_caller():
    def job(k):
        return gm.parallel_map(lambda n: n + k, range(50), workers=2, progress=False)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(job, range(4)))
    assert results == [[n + k for n in range(50)] for k in range(4)]


@pytest.mark.full
def test_workers_started_by_a_thread_outlive_it():
    """The iterator is made and begun in one thread, and used in another after the first has ended."""
    made = []

    def begin():
        results = gm.parallel_imap(lambda n: (n, os.getpid()), range(100), workers=1, chunk_size=1)
        made.extend([results, next(results)])

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    results, first = made
    got = [first, *results]
    assert [n for n, _ in got] == list(range(100))
    assert len({pid for _, pid in got}) == 1


@pytest.mark.full
def test_streams_can_be_chained():
    """One stream is the input of the next. Nothing waits for itself, and both end together."""
    doubled = gm.parallel_imap(lambda n: n * 2, itertools.count(), workers=2)
    results = gm.parallel_imap(lambda n: n + 1, doubled, workers=2)
    assert [next(results) for _ in range(500)] == [2 * n + 1 for n in range(500)]
    results.close()
    del results, doubled
    gc.collect()
    assert children() == []


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_program_that_ends_in_the_middle_of_a_stream(project, backend):
    """The interpreter's own end finds workers running: no error, no complaint, nobody left."""
    script = scripts.write(
        project / "script.py",
        f"""
        import itertools
        import gristmill as gm

        class Holder:
            pass

        holder = Holder()
        holder.itself = holder
        holder.results = gm.parallel_imap(lambda n: n, itertools.count(), workers=2, backend={backend!r})
        print(next(holder.results))
        """,
    )
    process = scripts.run("-X", "dev", "-W", "error", script)
    assert (process.returncode, process.stdout, process.stderr) == (0, "0\n", "")
