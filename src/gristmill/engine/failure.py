"""What became of an item that gave no result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["exception", "timeout", "worker_died", "out_of_memory", "unpicklable"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands in the place of a result with `on_error="return"`. Never a bare `None`.

    >>> Failure(index=3, kind="exception", error_type="ValueError", message="bad digit")
    Failure(index=3, kind='exception', error_type='ValueError', message='bad digit', ...)
    """

    index: int
    """Position of the item in the input."""
    kind: Kind
    error_type: str
    """Name of the exception's class, with its module unless it is a builtin."""
    message: str
    traceback: str = ""
    """The worker's traceback; for a crash, the Python stack at the fatal signal where it could be had."""
    signal: str | None = None
    """Name of the signal that ended the worker, such as `SIGSEGV`."""
    attempts: int = 1
    """How often the item was run."""
    position: int = -1
    """How far a task had come, by its own account (`context.at`); -1: not known."""
