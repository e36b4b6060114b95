"""Whether this code already runs inside a worker. A parallel call there runs in place, and warns once."""

from __future__ import annotations

from _thread import get_ident

_process = {"is_worker": False, "has_warned": False}
_worker_threads: set[int] = set()


def mark_process_as_worker() -> None:
    """Note that this process was started only to run tasks."""
    _process["is_worker"] = True


def is_worker_process() -> bool:
    """Whether this process was started only to run tasks."""
    return _process["is_worker"]


def enter_worker_thread() -> None:
    """Note that the current thread is a worker."""
    _worker_threads.add(get_ident())


def leave_worker_thread() -> None:
    """Note that the current thread is no longer a worker; another thread may get its number."""
    _worker_threads.discard(get_ident())


def is_inside_worker() -> bool:
    """Whether the current process or thread is a worker."""
    return _process["is_worker"] or get_ident() in _worker_threads


def is_first_nested_call() -> bool:
    """Whether this is the first call in the process: the warning is not repeated."""
    has_warned, _process["has_warned"] = _process["has_warned"], True
    return not has_warned
