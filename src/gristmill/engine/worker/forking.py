"""A worker that forks itself into several, once it has imported and loaded what all of them need.

It does so only while it has one thread: a lock that another one holds would stay closed in the copy for ever. Its
parent becomes the parent of the copies too, and sees how they end: a process in between forks them and exits, and the
kernel then gives them to the next ancestor that takes orphans (`adopted_process.take_orphans`).
"""

from __future__ import annotations

import os
from time import sleep

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from collections.abc import Sequence

Descriptors = tuple[int, int, int]
"""The worker's ends of what connects it to its parent: socket, lifeline, recording."""
_PID_BYTES = 4
_NUM_LOOKS = 100
_LOOK_SECONDS = 0.005


def fork_workers(own: Descriptors, copies: Sequence[Descriptors]) -> tuple[Descriptors, list[int]]:
    """Fork this process into copies. Returns in each process its own descriptors, and in this one the copies' numbers.

    There are fewer copies, or none, if this process has several threads, or may have, or the system allows no more
    processes or open files.
    """
    descriptors, pids = _fork(own, copies) if _has_one_thread() else (own, [])
    for others in (own, *copies):
        if others != descriptors:
            for fd in others:
                os.close(fd)
    return descriptors, pids


def _has_one_thread() -> bool:
    """Whether this is the only thread. Others get a moment to end: one that was joined is still there for a while."""
    for _ in range(_NUM_LOOKS):
        try:
            if len(os.listdir("/proc/self/task")) == 1:  # noqa: PTH208
                return True
        except OSError:  # a container without /proc
            return False
        sleep(_LOOK_SECONDS)
    return False


def _fork(own: Descriptors, copies: Sequence[Descriptors]) -> tuple[Descriptors, list[int]]:
    parent = os.getppid()
    pipes: list[int] = []
    try:
        pipes += os.pipe()
        pipes += os.pipe()
        between = os.fork()
    except OSError:
        for fd in pipes:
            os.close(fd)
        return own, []
    waiting, holding, reading, writing = pipes
    if between == 0:
        descriptors = _fork_copies(copies, writing)
        for fd in (holding, reading, writing):
            os.close(fd)
        os.read(waiting, 1)  # ends when the first process closes `holding`
        os.close(waiting)
        if os.getppid() != parent:  # the first process was killed, or the parent cannot take orphans
            os._exit(1)
        os.setsid()
        return descriptors, []
    os.close(writing)
    os.waitpid(between, 0)  # from now on the copies are the parent's children
    pids = os.read(reading, _PID_BYTES * len(copies))
    for fd in (reading, waiting, holding):
        os.close(fd)
    return own, [int.from_bytes(pids[i : i + _PID_BYTES], "little") for i in range(0, len(pids), _PID_BYTES)]


def _fork_copies(copies: Sequence[Descriptors], writing: int) -> Descriptors:
    """Fork the copies and exit. Returns only in the copies."""
    for descriptors in copies:
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            return descriptors
        os.write(writing, pid.to_bytes(_PID_BYTES, "little"))
    os._exit(0)
