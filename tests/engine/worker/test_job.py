"""A parallel call inside a worker runs in place, and says so once."""

import logging
import os
import threading

import pytest
from gristmill_testing import scripts

import gristmill as gm
from gristmill.engine.tasks import Task, run_tasks
from gristmill.engine.worker import chunk

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_nested_call_runs_in_its_worker():
    def function(n):
        inner = gm.parallel_map(lambda m: os.getpid(), range(20), workers=4, progress=False)
        return os.getpid(), inner

    for pid, inner in gm.parallel_map(function, range(3), workers=2, progress=False):
        assert pid != os.getpid()
        assert set(inner) == {pid}


def test_nested_call_in_a_thread_runs_in_that_thread():
    def function(n):
        inner = gm.parallel_map(lambda m: threading.get_ident(), range(20), workers=4, backend="threads")
        return threading.get_ident(), inner

    for thread, inner in gm.parallel_map(function, range(3), workers=2, backend="threads"):
        assert thread != threading.get_ident()
        assert set(inner) == {thread}


def test_nested_options_that_cannot_be_kept_are_dropped():
    def function(n):
        return gm.parallel_map(abs, [-n], workers=2, timeout=10.0, pin=True, max_items_per_worker=1, progress=False)

    assert gm.parallel_map(function, [5], workers=1) == [[5]]


def test_nested_failures_are_the_outer_items_failures():
    def function(n):
        return gm.parallel_map(lambda m: 1 // m, [1, 0], workers=2, progress=False)

    (failure,) = gm.parallel_map(function, [0], workers=1, on_error="return")
    assert (failure.kind, failure.error_type) == ("exception", "ZeroDivisionError")


def test_nested_tasks_and_streams():
    def function(task, context):
        inner = run_tasks(lambda t, c: t.payload + 1, [Task("inner", 1)], workers=2)
        stream = gm.parallel_imap(abs, [-1, -2], workers=2)
        return [result for _, result in inner], list(stream)

    ((_, result),) = run_tasks(function, [Task("outer", 0)], workers=1)
    assert result == ([2], [1, 2])


def test_worker_says_so_once(project):
    """Once a process, however many calls, and the message names what happens."""
    script = scripts.write(
        project / "script.py",
        """
        import gristmill as gm

        def function(n):
            return [gm.parallel_map(abs, [n], workers=2, progress=False) for _ in range(5)]

        gm.parallel_map(function, range(10), workers=1, progress=False)
        """,
    )
    process = scripts.run(script)
    assert process.returncode == 0
    (line,) = process.stderr.splitlines()
    assert "serially" in line


def test_calls_outside_of_workers_say_nothing(caplog):
    with caplog.at_level(logging.WARNING, "gristmill"):
        gm.parallel_map(lambda n: n, range(3), workers=2, backend="threads")
        gm.parallel_map(lambda n: n, range(3), workers=2)
    assert caplog.records == []
    assert not chunk.is_inside_worker()


def test_thread_that_was_a_worker_is_none_any_more():
    """A thread number may be given out again: after a job no thread counts as a worker."""
    gm.parallel_map(lambda n: n, range(3), workers=2, backend="threads")
    seen = []
    for _ in range(10):
        thread = threading.Thread(target=lambda: seen.append(chunk.is_inside_worker()))
        thread.start()
        thread.join()
    assert seen == [False] * 10
