"""Is this code already running inside a worker? A parallel call there runs in place, and says so once."""

from __future__ import annotations

from _thread import get_ident

_process = {"is_worker": False, "has_said": False}
_worker_threads: set[int] = set()


def mark_process_as_worker() -> None:
    _process["is_worker"] = True


def is_worker_process() -> bool:
    """Whether this process was started for nothing but running tasks."""
    return _process["is_worker"]


def enter_worker_thread() -> None:
    _worker_threads.add(get_ident())


def leave_worker_thread() -> None:
    _worker_threads.discard(get_ident())


def is_inside_worker() -> bool:
    return _process["is_worker"] or get_ident() in _worker_threads


def is_first_nested_call() -> bool:
    """True once in a process: for the message."""
    has_said, _process["has_said"] = _process["has_said"], True
    return not has_said
