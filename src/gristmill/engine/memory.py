"""Keeping a job inside its memory: how many workers fit, which has grown too large, and whether the kernel had to kill.

Looked at once a second: a handful of small files.
"""

from __future__ import annotations

from time import monotonic

from gristmill.engine import resources

_LOOK_SECONDS = 1.0
_SHRINK_SECONDS = 5.0  # a worker that was let go needs a moment to give its memory back
_SHORT_BELOW = 0.05
_WORKERS_SHARE = 0.8
_GROWTH_ALLOWED = 1.5


class MemoryWatch:
    def __init__(self) -> None:
        self._limit = resources.read_memory_limit()
        self._num_kills = resources.count_oom_kills()
        self._looked = self._shrunk = monotonic()

    def is_due(self) -> bool:
        now = monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def size_of(self, pid: int) -> int:
        return resources.read_process_bytes(pid)

    def count_fitting_workers(self, worker_bytes: int, wanted: int) -> int:
        """How many workers of this size fit, one being there already; at most `wanted`, at least one."""
        more = int(_WORKERS_SHARE * resources.read_memory_available()) // max(worker_bytes, 1)
        return max(1, min(wanted, 1 + more))

    def is_too_large(self, size: int, size_after_setup: int, num_workers: int) -> bool:
        """Above its share, and not because it was made that large."""
        return size > _WORKERS_SHARE * self._limit / num_workers and size > _GROWTH_ALLOWED * size_after_setup

    def is_short(self) -> bool:
        """Memory is nearly used up; true at most every few seconds."""
        now = monotonic()
        if now - self._shrunk < _SHRINK_SECONDS or resources.read_memory_available() > _SHORT_BELOW * self._limit:
            return False
        self._shrunk = now
        return True

    def has_oom_killer_fired(self) -> bool:
        """Has the kernel killed for lack of memory since this was last asked?"""
        num_kills, self._num_kills = self._num_kills, resources.count_oom_kills()
        return self._num_kills > num_kills
