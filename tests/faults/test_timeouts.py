"""An item over its timeout is ended whatever it does, and only it is blamed."""

import json
import os
import re
import subprocess
import time

import pytest
from gristmill_testing import objects
from gristmill_testing.watching import count_and_sign, is_alive, sign, wait_for_file, wait_until

import gristmill as gm

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

# What an innocent item may need on a busy machine must stay below it, so it is never below half a second.
TIMEOUT = 0.7


@pytest.mark.parametrize("chunk_size", [1, 6])
@pytest.mark.parametrize("how", ["sleeps", "holds the interpreter", "ignores signals"])
def test_function_that_never_returns(how, chunk_size):
    def function(n):
        if n == 2:
            if how == "holds the interpreter":
                re.match(r"(a+)+$", "a" * 64 + "b")
            if how == "ignores signals":
                import signal

                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                    signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(1)
        return n

    results = gm.parallel_map(function, range(6), workers=2, chunk_size=chunk_size, timeout=TIMEOUT, on_error="return")
    failure = results[2]
    assert [n for n, result in enumerate(results) if result != n] == [2]
    assert (failure.kind, failure.index, failure.attempts) == ("timeout", 2, 1)
    assert failure.error_type == "ItemTimeoutError"


def test_timeout_is_raised_by_default():
    with pytest.raises(gm.errors.ItemTimeoutError) as caught:
        gm.parallel_map(lambda n: time.sleep(3600), ["slow"], workers=1, timeout=TIMEOUT)
    assert isinstance(caught.value, TimeoutError)
    assert "item 0" in "\n".join(caught.value.__notes__)
    assert f"{TIMEOUT:g}" in caught.value.message


@pytest.mark.full
def test_timeout_is_for_each_item_not_for_the_chunk():
    """Twenty items of a fifth of the timeout each, in one chunk."""
    pause = TIMEOUT / 5
    assert gm.parallel_map(
        lambda n: time.sleep(pause) or n, range(20), workers=1, chunk_size=20, timeout=TIMEOUT
    ) == list(range(20))


def test_slow_item_in_a_chunk_is_blamed_alone_and_others_are_run():
    """The slow one sits between others in one chunk; two slow ones are both found."""

    def function(n):
        if n in (3, 8):
            time.sleep(3600)
        return n

    results = gm.parallel_map(function, range(10), workers=1, chunk_size=10, timeout=TIMEOUT, on_error="return")
    assert [result.index for result in results if isinstance(result, gm.Failure)] == [3, 8]
    assert {result.kind for result in results if isinstance(result, gm.Failure)} == {"timeout"}


@pytest.mark.full
def test_timeouts_use_retries_and_are_counted(folder):
    def function(n):
        count_and_sign(folder, "try")
        time.sleep(3600)

    (failure,) = gm.parallel_map(function, ["slow"], workers=1, timeout=TIMEOUT, retries=2, on_error="return")
    assert (failure.kind, failure.attempts) == ("timeout", 3)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.full
def test_item_that_is_slow_only_once_returns(folder):
    def function(n):
        if n == 1 and count_and_sign(folder, "try") == 0:
            time.sleep(3600)
        return n

    assert gm.parallel_map(function, range(3), workers=2, timeout=TIMEOUT, retries=1) == [0, 1, 2]


@pytest.mark.full
def test_others_go_on_while_one_hangs():
    """A worker is stuck until its timeout; meanwhile the other one works."""

    def function(n):
        if n == 0:
            time.sleep(3600)
        return n

    order = list(
        gm.parallel_imap(function, range(20), workers=2, chunk_size=1, timeout=3.0, on_error="return", ordered=False)
    )
    position = next(position for position, result in enumerate(order) if isinstance(result, gm.Failure))
    assert position >= 18  # one may wait behind the late one; test_slow_items.py is about that
    assert sorted(result for result in order if isinstance(result, int)) == list(range(1, 20))


@pytest.mark.full
def test_what_a_late_item_started_ends_too(folder):
    def function(n):
        child = subprocess.Popen(["sleep", "3600"])
        (folder / "child").write_text(str(child.pid))
        child.wait()

    (failure,) = gm.parallel_map(function, [0], workers=1, timeout=TIMEOUT, on_error="return")
    assert failure.kind == "timeout"
    pid = int((folder / "child").read_text())
    wait_until(lambda: not is_alive(pid), "the end of the grandchild", seconds=5)


@pytest.mark.full
def test_set_up_does_not_count():
    """The timeout is an item's. A set-up may take longer."""

    def setup():
        time.sleep(2 * TIMEOUT)
        return "state"

    assert gm.parallel_map(lambda n, state: state, range(2), workers=1, setup=setup, timeout=TIMEOUT) == ["state"] * 2


@pytest.mark.full
def test_consumer_may_take_longer_than_the_timeout():
    """Between two results the caller may think: what waits to be sent meanwhile is not late."""
    results = gm.parallel_imap(lambda n: bytes(4 << 20), range(6), workers=2, chunk_size=1, timeout=TIMEOUT)
    sizes = []
    for number, result in enumerate(results):
        if number == 0:
            time.sleep(2 * TIMEOUT)  # the consumer's own work, not a wait for anything
        sizes.append(len(result))
    assert sizes == [4 << 20] * 6


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_backends_that_cannot_keep_a_timeout_refuse_it(backend):
    with pytest.raises(gm.errors.UsageError) as caught:
        gm.parallel_map(abs, [1], backend=backend, timeout=1.0)
    assert isinstance(caught.value, ValueError)


@pytest.mark.full
def test_auto_keeps_a_timeout():
    (failure,) = gm.parallel_map(
        lambda n: time.sleep(3600), [0], backend="auto", workers=1, timeout=TIMEOUT, on_error="return"
    )
    assert failure.kind == "timeout"


@pytest.mark.full
def test_argument_that_hangs_when_it_is_unpickled():
    """The item never even reaches the function: with a timeout, that must end too."""
    items = [0, objects.BadArrival("hang"), 2]
    results = gm.parallel_map(lambda n: n, items, workers=2, chunk_size=1, timeout=TIMEOUT, on_error="return")
    assert (results[0], results[2]) == (0, 2)
    assert isinstance(results[1], gm.Failure)
    assert results[1].kind == "timeout"


@pytest.mark.full
def test_result_that_hangs_when_it_is_pickled():
    def function(n):
        return objects.BadDeparture("hang") if n == 1 else n

    results = gm.parallel_map(function, range(3), workers=2, chunk_size=1, timeout=TIMEOUT, on_error="return")
    assert (results[0], results[2]) == (0, 2)
    assert isinstance(results[1], gm.Failure)
    assert results[1].kind == "timeout"


@pytest.mark.full
def test_late_and_deadly_items_together(folder):
    """Each of the two gets its own failure."""

    def function(n):
        if n == 1:
            time.sleep(3600)
        if n == 4:
            os._exit(1)
        if n == 6:
            raise ValueError(n)
        return n

    results = gm.parallel_map(function, range(8), workers=2, chunk_size=4, timeout=TIMEOUT, on_error="return")
    kinds = {n: result.kind for n, result in enumerate(results) if isinstance(result, gm.Failure)}
    assert kinds == {1: "timeout", 4: "worker_died", 6: "exception"}


@pytest.mark.full
def test_closing_does_not_wait_for_what_never_returns(folder):
    def function(n):
        if n == 1:
            sign(folder, "stuck")
            re.match(r"(a+)+$", "a" * 64 + "b")
        return n

    results = gm.parallel_imap(function, range(2), workers=2, chunk_size=1)
    assert next(results) == 0
    wait_for_file(folder / "stuck")
    results.close()


@pytest.mark.slow
def test_many_quick_items_are_never_late(tmp_path):
    """The worker's notes are read while it writes them, thousands of times: none of these reads may look like an hour.

    Small chunks, since the parent looks at the notes once a message.
    """
    path = tmp_path / "events.jsonl"
    items = range(-1_000_000, 0)
    results = gm.parallel_map(abs, items, workers=3, chunk_size=50, timeout=3600, progress=gm.EventLog(path))
    assert results == list(map(abs, items))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event for event in events if event["event"] == "worker_died"] == []
