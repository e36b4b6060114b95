"""The record of an item that has no result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["exception", "timeout", "worker_died", "out_of_memory", "unpicklable"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An item's failure. With `on_error="return"` it takes the place of the result, never a bare `None`.

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
