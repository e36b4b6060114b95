"""A worker that dies is replaced, its item run again, and only the item that really kills is blamed."""

import ctypes
import json
import logging
import os
import signal
import subprocess
import threading
import time

import psutil
import pytest
from gristmill_testing.watching import (
    count_and_sign,
    is_alive,
    meet,
    sign,
    wait_for_file,
    wait_for_files,
    wait_until,
)

import gristmill as gm

pytestmark = pytest.mark.usefixtures("nothing_left")

WAYS_TO_DIE = {
    "kill -9": (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    "kill -SEGV": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    "null pointer": (lambda: ctypes.string_at(0), "SIGSEGV"),
    "abort": (os.abort, "SIGABRT"),
    "kill -TERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "SIGTERM"),
    "_exit(0)": (lambda: os._exit(0), None),
    "_exit(3)": (lambda: os._exit(3), None),
}


def innocents_returned(results, guilty, expected):
    return all(result == expected(n) for n, result in enumerate(results) if n not in guilty)


@pytest.mark.parametrize("way", WAYS_TO_DIE)
def test_guilty_item_is_found_and_innocents_return(way):
    die, signal_name = WAYS_TO_DIE[way]

    def function(n):
        if n == 3:
            die()
        return n * n

    results = gm.parallel_map(function, range(8), workers=2, on_error="return")

    assert innocents_returned(results, {3}, lambda n: n * n)
    failure = results[3]
    assert isinstance(failure, gm.Failure)
    assert (failure.index, failure.kind, failure.error_type) == (3, "worker_died", "WorkerDiedError")
    assert failure.signal == signal_name
    assert failure.attempts == 6  # three deaths among others, three alone
    if way == "_exit(3)":
        assert "3" in failure.message
    if way == "null pointer":
        assert "function" in failure.traceback  # the Python stack at the fatal signal


def test_death_raises_by_default_with_the_item_named():
    def function(n):
        if n == 3:
            os._exit(3)
        return n

    with pytest.raises(gm.errors.WorkerDiedError) as caught:
        gm.parallel_map(function, range(5), workers=2)
    assert isinstance(caught.value, RuntimeError)
    assert "item 3" in "\n".join(caught.value.__notes__)


@pytest.mark.full
def test_death_can_be_skipped_counted_and_logged(caplog):
    def function(n):
        if n == 3:
            os._exit(3)
        return n

    with caplog.at_level(logging.WARNING, "gristmill"):
        assert gm.parallel_map(function, range(5), workers=2, on_error="skip") == [0, 1, 2, 4]
    last = caplog.records[-1].getMessage()
    assert "skipped 1 of 5" in last
    assert "worker_died" in last


@pytest.mark.parametrize("position", [0, 5, 9])
@pytest.mark.parametrize("chunk_size", [10, "auto"])
def test_only_the_guilty_one_of_a_chunk_is_blamed(position, chunk_size):
    def function(n):
        if n == position:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    results = gm.parallel_map(function, range(10), workers=1, chunk_size=chunk_size, on_error="return")
    failures = [result.index for result in results if isinstance(result, gm.Failure)]
    assert failures == [position]
    assert innocents_returned(results, {position}, lambda n: n)


@pytest.mark.full
def test_several_guilty_items_are_all_found():
    def function(n):
        if n in (2, 7):
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    results = gm.parallel_map(function, range(12), workers=2, on_error="return")
    assert [n for n, result in enumerate(results) if isinstance(result, gm.Failure)] == [2, 7]
    assert innocents_returned(results, {2, 7}, lambda n: n)


@pytest.mark.full
@pytest.mark.parametrize("num_deaths", [1, 2, 5])
def test_deaths_use_no_retry(folder, num_deaths):
    """Up to five deaths in all, two of them alone, and the item still returns with `retries=0`."""

    def function(n):
        if n == 1 and count_and_sign(folder, "death") < num_deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    assert gm.parallel_map(function, range(4), workers=2, retries=0) == [0, 1, 2, 3]
    assert len(list(folder.iterdir())) == num_deaths + 1


@pytest.mark.full
def test_deaths_leave_the_retries_to_exceptions(folder):
    """Two deaths and two exceptions, with `retries=2`."""

    def function(n):
        attempt = count_and_sign(folder, "attempt")
        if attempt in (0, 2):
            os._exit(1)
        if attempt in (1, 3):
            raise ValueError(attempt)
        return n

    assert gm.parallel_map(function, ["item"], workers=1, retries=2) == ["item"]


def test_worker_killed_from_outside_is_replaced_at_once(folder):
    """The item is run again by another worker while the one of its neighbour goes on."""

    def function(n):
        if n == 0:
            if count_and_sign(folder, "first") == 0:
                sign(folder, f"pid-{os.getpid()}")
                wait_for_file(folder / "never")
            sign(folder, "again")
        else:
            sign(folder, "neighbour")
            wait_for_file(folder / "again")  # so it still runs when the other is replaced
        return os.getpid()

    def kill():
        (name,) = wait_for_files(folder, 1, "pid-*")
        wait_for_file(folder / "neighbour")
        os.kill(int(name.removeprefix("pid-")), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    first, second = gm.parallel_map(function, range(2), workers=2, chunk_size=1)
    killer.join()
    killed = int(next(folder.glob("pid-*")).name.removeprefix("pid-"))
    assert first != killed
    assert second not in (killed, first)


@pytest.mark.full
def test_idle_worker_may_be_killed(folder):
    """One worker waits for its item while the other, which has nothing to do, is killed."""

    def function(n):
        meet(folder, 2)
        if n == 0:
            wait_for_file(folder / "killed")
        sign(folder, f"done-{os.getpid()}")
        return n

    def kill():
        (name,) = wait_for_files(folder, 1, "done-*")
        pid = int(name.removeprefix("done-"))
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING, "the worker to be idle")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "its end")
        sign(folder, "killed")

    killer = threading.Thread(target=kill)
    killer.start()
    assert gm.parallel_map(function, range(2), workers=2, chunk_size=1) == [0, 1]
    killer.join()


@pytest.mark.full
def test_worker_that_dies_with_a_large_message_underway(folder):
    """The next chunk, of many MiB, is already being sent to the worker when it dies."""
    items = [bytes(10)] * 5 + [b"die"] + [bytes(32 << 20)] * 2

    def function(item):
        if item == b"die" and count_and_sign(folder, "death") == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(item)

    assert gm.parallel_map(function, items, workers=1, chunk_size=1) == [len(item) for item in items]


def test_finished_items_of_a_dead_worker_count(folder):
    """What a worker has sent before its death is read first: those items are not run again."""

    def function(n):
        sign(folder, f"run-{n}-{os.getpid()}")
        if n == 1 and count_and_sign(folder, "death") == 0:
            wait_for_file(folder / "seen")  # the parent has the first result
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    results = gm.parallel_imap(function, range(2), workers=1, chunk_size=1)
    assert next(results) == 0
    sign(folder, "seen")
    assert next(results) == 1
    assert len(list(folder.glob("run-0-*"))) == 1
    assert len(list(folder.glob("run-1-*"))) == 2


@pytest.mark.full
def test_what_the_function_started_ends_with_its_worker(folder):
    """A grandchild that would sleep for an hour is gone when the call returns."""

    def function(n):
        child = subprocess.Popen(["sleep", "3600"])
        sign(folder, f"child-{child.pid}")
        if n == 1 and count_and_sign(folder, "death") == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return child.pid

    gm.parallel_map(function, range(3), workers=2)
    pids = [int(path.name.removeprefix("child-")) for path in folder.glob("child-*")]
    assert len(pids) == 4
    wait_until(lambda: not any(map(is_alive, pids)), "the end of the grandchildren", seconds=5)


@pytest.mark.full
def test_function_that_closes_all_files():
    """As daemons do. The worker can no longer be talked to, so it is as good as dead."""

    def function(n):
        if n == 2:
            os.closerange(3, 256)
        return n

    results = gm.parallel_map(function, range(4), workers=2, on_error="return")
    assert innocents_returned(results, {2}, lambda n: n)
    assert results[2].kind == "worker_died"


@pytest.mark.full
def test_function_that_forks():
    """A forked child that leaves properly disturbs nothing."""

    def function(n):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return n

    assert gm.parallel_map(function, range(6), workers=2) == list(range(6))


@pytest.mark.full
def test_forked_child_that_exits_as_python_does_speaks_for_nobody():
    """`sys.exit()` in a forked child must not become the item's failure, while the worker goes on to its result."""

    def function(n):
        child = os.fork()
        if child == 0:
            raise SystemExit(0)
        os.waitpid(child, 0)
        return n

    results = gm.parallel_map(function, range(3), workers=1, on_error="return", timeout=20)
    assert results == [0, 1, 2]


@pytest.mark.full
def test_deaths_are_events_and_messages(tmp_path, caplog):
    log = gm.EventLog(tmp_path / "events.jsonl")

    def function(n):
        if n == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return n

    gm.parallel_map(function, range(3), workers=2, on_error="return", progress=log)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    deaths = [event for event in events if event["event"] == "worker_died"]
    assert len(deaths) == 6
    assert all("SIGSEGV" in event["cause"] and event["item"] == 1 for event in deaths)
    assert sum("SIGSEGV" in record.getMessage() for record in caplog.records) == 6
    assert events[-1]["event"] == "job_ended"
    assert events[-1]["deaths"] == 6
    assert events[-1]["failed"] == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_suspect_is_tried_though_others_do_not_want_to_leave(folder):
    """A thread that the function left running keeps its worker from exiting; the isolated run must not wait."""

    def setup():
        threading.Thread(target=wait_for_file, args=(folder / "never", 3600)).start()

    def function(n, _):
        time.sleep(0.15)  # its work: so that the other worker is never idle when this one dies
        if n == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    results = gm.parallel_map(function, range(16), workers=2, chunk_size=1, setup=setup, on_error="return")
    assert innocents_returned(results, {3}, lambda n: n)
    assert results[3].kind == "worker_died"
