"""A failed item's last word."""

import pickle
import tracemalloc

import pytest
from gristmill_testing.objects import TwoArguments

import gristmill as gm
from gristmill.engine import failure_report
from gristmill.engine.backend import Died
from gristmill.engine.tasks import Task
from gristmill.engine.worker.pickling import CapturedError


def capture(error, *, travels=True, kind="exception"):
    try:
        raise error
    except BaseException as raised:
        return CapturedError(raised, kind, travels=travels)


def test_exception_becomes_a_failure_and_itself():
    failed = failure_report.report_exception(7, "the item", capture(ValueError("bad")), attempts=3)
    failure = failed.failure
    assert (failure.index, failure.kind, failure.error_type, failure.message) == (7, "exception", "ValueError", "bad")
    assert (failure.attempts, failure.signal) == (3, None)
    error = failed.to_exception()
    assert type(error) is ValueError
    notes = "\n".join(error.__notes__)
    assert "item 7" in notes
    assert "attempt 3" in notes
    assert "the item" in notes


def test_first_attempt_is_not_mentioned():
    error = failure_report.report_exception(0, 1, capture(ValueError("bad")), attempts=1).to_exception()
    assert "attempt" not in "\n".join(error.__notes__)


def test_exception_that_could_not_travel_is_named():
    error = failure_report.report_exception(0, 1, capture(TwoArguments("a", 2)), attempts=1).to_exception()
    assert isinstance(error, gm.errors.RemoteError)
    assert "TwoArguments" in str(error)
    assert "a has 2" in str(error)


def test_exception_of_this_process_is_the_same_object():
    original = TwoArguments("a", 2)
    failed = failure_report.report_exception(0, 1, capture(original, travels=False), attempts=1)
    assert failed.to_exception() is original


@pytest.mark.parametrize(
    ("out_of_memory", "kind", "error_class", "builtin"),
    [
        (False, "worker_died", gm.errors.WorkerDiedError, RuntimeError),
        (True, "out_of_memory", gm.errors.OutOfMemoryError, MemoryError),
    ],
)
def test_deaths(out_of_memory, kind, error_class, builtin):
    event = Died(None, "was killed by SIGKILL", "SIGKILL", 4, 0, "stack of the crash")
    failed = failure_report.report_deaths(4, "item", event, 6, out_of_memory=out_of_memory)
    assert (failed.failure.kind, failed.failure.signal, failed.failure.attempts) == (kind, "SIGKILL", 6)
    error = failed.to_exception()
    assert type(error) is error_class
    assert isinstance(error, builtin)
    assert "SIGKILL" in str(error)
    assert "stack of the crash" in "\n".join(error.__notes__)
    assert error.help


def test_timeout():
    failed = failure_report.report_timeout(4, "item", 2.5, 1, position=7)
    assert failed.failure.kind == "timeout"
    assert isinstance(failed.to_exception(), gm.errors.ItemTimeoutError)
    assert "2.5" in failed.failure.message
    assert failed.failure.position == 7


class _NoRepr:
    def __repr__(self):
        raise RuntimeError("no")


def test_items_are_shown_in_a_few_words():
    assert failure_report.describe_item("short") == "'short'"
    assert "_NoRepr" in failure_report.describe_item(_NoRepr())
    assert len(failure_report.describe_item("x" * 10_000)) < 300
    assert len(failure_report.describe_item(list(range(10_000)))) < 300
    assert len(failure_report.describe_item({str(n): n for n in range(1000)})) < 300


@pytest.mark.parametrize(
    "item",
    [bytes(32 << 20), bytearray(32 << 20), "x" * (32 << 20), [bytes(1 << 20)] * 32, Task("a", bytes(32 << 20))],
    ids=["bytes", "bytearray", "str", "list", "task"],
)
def test_showing_a_large_item_takes_little_memory(item):
    """The words about an item of a gigabyte must not take four."""
    tracemalloc.start()
    try:
        failure_report.describe_item(item)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_failures_are_values():
    failure = gm.Failure(index=3, kind="exception", error_type="ValueError", message="bad")
    assert failure == gm.Failure(3, "exception", "ValueError", "bad", "", None, 1)
    assert hash(failure) == hash(gm.Failure(3, "exception", "ValueError", "bad"))
    with pytest.raises(AttributeError):
        failure.index = 4
    assert pickle.loads(pickle.dumps(failure)) == failure
