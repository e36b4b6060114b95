"""Exceptions on their way: as text always, as themselves where that survives."""

import errno
import pickle

import pytest
from gristmill_testing import objects

from gristmill.core.errors import RemoteError, SourceChangedError, UsageError
from gristmill.engine.worker.captured_error import CapturedError


def capture(error, **options):
    try:
        raise error
    except BaseException as raised:
        return CapturedError(raised, **options)


def sent(error):
    """As it arrives on the other side."""
    return pickle.loads(pickle.dumps(capture(error, travels=True)))


def test_plain_exception_survives():
    arrived = sent(KeyError("a", 2))
    assert (arrived.kind, arrived.error_type, arrived.message) == ("exception", "KeyError", "('a', 2)")
    error = arrived.to_exception()
    assert type(error) is KeyError
    assert error.args == ("a", 2)


def test_our_own_errors_survive_with_their_context():
    error = sent(UsageError("wrong", help="do it right", value=3)).to_exception()
    assert type(error) is UsageError
    assert (error.message, error.help, error.context) == ("wrong", "do it right", {"value": 3})


@pytest.mark.parametrize(
    "error", [objects.TwoArguments("a", 1), objects.HoldsLock("x"), objects.KeywordOnly(reason="y")], ids=repr
)
def test_those_that_cannot_travel_are_named(error):
    arrived = sent(error)
    stand_in = arrived.to_exception()
    assert isinstance(stand_in, RemoteError)
    assert type(error).__name__ in str(stand_in)
    assert str(error) in str(stand_in)
    assert type(error).__name__ in arrived.traceback


def test_errors_that_a_retry_cannot_fix_are_final():
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO):
        assert sent(OSError(number, "full")).is_final
    assert sent(SourceChangedError("a.jsonl has changed")).is_final
    for error in (OSError(errno.EAGAIN, "later"), OSError(errno.ENOENT, "gone"), ValueError(28), OSError("?")):
        assert not sent(error).is_final


def test_lack_of_memory_has_its_own_kind():
    assert capture(MemoryError()).kind == "out_of_memory"
    assert capture(MemoryError(), kind="unpicklable").kind == "unpicklable"


def test_text_is_bounded():
    arrived = sent(ValueError("x" * 10_000_000))
    assert len(arrived.message) <= 1 << 17
    assert len(arrived.traceback) <= 1 << 17


def test_deep_recursion_has_a_bounded_traceback():
    def dive(n):
        return dive(n + 1)

    try:
        dive(0)
    except RecursionError as error:
        arrived = CapturedError(error, travels=True)
    assert arrived.error_type == "RecursionError"
    assert len(arrived.traceback) <= 1 << 17


def test_causes_are_in_the_traceback():
    try:
        try:
            raise ValueError("the root")
        except ValueError as cause:
            raise KeyError("the surface") from cause
    except KeyError as error:
        arrived = CapturedError(error, travels=True)
    assert "the root" in arrived.traceback
    assert "the surface" in arrived.traceback


def test_message_that_cannot_be_made():
    assert capture(objects.NoMessage()).error_type.endswith("NoMessage")
