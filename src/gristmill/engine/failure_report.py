"""The report on an item that has no result: the `Failure` that is returned, and the exception that is raised."""

from __future__ import annotations

import contextlib
import reprlib
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core import errors

if TYPE_CHECKING:
    from gristmill.engine.backend import Died
    from gristmill.engine.worker.pickling import CapturedError, Kind


@dataclass(frozen=True, slots=True)
class Failure:
    """An item's failure. With `on_error="return"` it is what the item returns, never a bare `None`.

    >>> Failure(index=3, kind="exception", error_type="ValueError", message="bad digit")
    Failure(index=3, kind='exception', error_type='ValueError', message='bad digit', ...)
    """

    index: int
    """The position of the item in the input."""
    kind: Kind
    error_type: str
    """The name of the exception's class, with its module unless it is a builtin."""
    message: str
    traceback: str = ""
    """The worker's traceback; for a crash, the Python stack at the fatal signal if it is available."""
    signal: str | None = None
    """The name of the signal that ended the worker, such as `SIGSEGV`."""
    attempts: int = 1
    """The number of times that the item was run."""
    position: int = -1
    """The position that a task reported last (`context.at`); -1 if it reported none."""


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120
_MAX_SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """An item's failure after the last attempt, with everything that is needed to raise it."""

    failure: Failure
    item: str
    """The item in a few words."""
    error: CapturedError | None = None
    """The exception, if the item failed with one."""

    def to_exception(self) -> BaseException:
        """Return the original exception, or an error instead. Its notes: the item, and the worker's traceback."""
        failure = self.failure
        original = None if self.error is None or failure.kind == "unpicklable" else self.error.to_exception()
        error = original if original is not None else _make_error(failure)
        attempts = f", attempt {failure.attempts}" if failure.attempts > 1 else ""
        add_note(error, f"gristmill: item {failure.index}{attempts}: {self.item}")
        if failure.traceback and (self.error is None or self.error.raised is None):
            add_note(error, f"in the worker:\n{failure.traceback.rstrip()}")
        return error


def add_note(error: BaseException, note: str) -> None:
    """Add a note, unless the exception's class does not allow attributes to be set."""
    with contextlib.suppress(Exception):
        error.add_note(note)


def _make_error(failure: Failure) -> errors.GristmillError:
    error_class, hint = {
        "timeout": (errors.ItemTimeoutError, "raise the timeout, or let on_error skip or return such items"),
        "out_of_memory": (errors.OutOfMemoryError, "use smaller items, or give the job more memory"),
        "unpicklable": (
            errors.UnpicklableError,
            "send plain data; create locks, connections and open files inside the worker, in setup",
        ),
    }.get(failure.kind, (errors.WorkerDiedError, "the function crashes on this item: run it alone to see why"))
    return error_class(failure.message, help=hint, index=failure.index, signal=failure.signal)


def report_exception(index: int, item: Any, error: CapturedError, attempts: int) -> FinalFailure:
    """Report an item that raised, or that cannot be pickled."""
    failure = Failure(
        index, error.kind, error.error_type, error.message, error.traceback, signal=None, attempts=attempts
    )
    return FinalFailure(failure, describe_item(item), error)


def report_timeout(index: int, item: Any, timeout: float | None, attempts: int, position: int) -> FinalFailure:
    """Report an item that took too long. `timeout` None: its worker had set itself a limit of CPU time."""
    message = "used up its CPU time" if timeout is None else f"took longer than its timeout of {timeout:g} s"
    failure = Failure(index, "timeout", "ItemTimeoutError", message, attempts=attempts, position=position)
    return FinalFailure(failure, describe_item(item))


def report_growth(index: int, item: Any, event: Died, num_bytes: int, attempts: int) -> FinalFailure:
    """Report an item that made its worker grow to `num_bytes`."""
    message = f"the worker had grown to {num_bytes / (1 << 30):.1f} GiB and was killed"
    failure = Failure(
        index,
        "out_of_memory",
        "OutOfMemoryError",
        message,
        signal=event.signal,
        attempts=attempts,
        position=event.position,
    )
    return FinalFailure(failure, describe_item(item))


def report_deaths(index: int, item: Any, event: Died, attempts: int, *, out_of_memory: bool) -> FinalFailure:
    """Report an item that ended every worker that ran it."""
    times = "1 time" if attempts == 1 else f"{attempts} times"
    message = f"the worker {event.cause} whenever it ran this item ({times}, at the end with no other worker around)"
    failure = Failure(
        index,
        "out_of_memory" if out_of_memory else "worker_died",
        "OutOfMemoryError" if out_of_memory else "WorkerDiedError",
        message,
        event.crash_text,
        event.signal,
        attempts,
        event.position,
    )
    return FinalFailure(failure, describe_item(item))


def describe_item(item: Any) -> str:
    """Describe an item in a few words. Never calls `repr` on all of it: the item may be a gigabyte."""
    try:
        if isinstance(item, (bytes, bytearray, memoryview)) and len(item) > _MAX_SHOWN_BYTES:
            return f"{bytes(item[:_MAX_SHOWN_BYTES])!r}... ({len(item):,} bytes)"
        if is_dataclass(item) and not isinstance(item, type):
            values = ", ".join(f"{field.name}={describe_item(getattr(item, field.name))}" for field in fields(item))
            return f"{type(item).__name__}({values})"
        return _repr.repr(item)
    except Exception:
        return f"<{type(item).__name__}>"
