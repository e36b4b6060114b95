"""The memory of a job: how many workers fit, which one has grown too large, and whether the kernel has killed one.

Checked once a second, by reading a few small files.
"""

from __future__ import annotations

from time import monotonic

from gristmill.engine.machine import resources

_CHECK_SECONDS = 1.0
_SHRINK_SECONDS = 5.0  # a worker that was stopped needs a moment to release its memory
_SHORT_BELOW = 0.05
"""The share of the limit below which memory is short."""
_WORKERS_SHARE = 0.8
"""The share of memory that all workers together may use; the rest is for the caller and the system."""
_GROWTH_ALLOWED = 1.5


class MemoryWatch:
    """Compares the memory of a job with the limits of the machine and its control groups."""

    def __init__(self) -> None:
        self._limit = resources.read_memory_limit()
        self._num_kills = resources.count_oom_kills()
        self._last_check = self._last_shrink = monotonic()

    def is_due(self) -> bool:
        """Whether a second has passed since this was last true."""
        now = monotonic()
        if now - self._last_check < _CHECK_SECONDS:
            return False
        self._last_check = now
        return True

    def size_of(self, pid: int) -> int:
        """Return the resident memory of a process in bytes."""
        return resources.read_process_bytes(pid)

    def count_fitting_workers(self, worker_bytes: int, max_workers: int) -> int:
        """Count the workers of this size that fit, one of them running already: from 1 to `max_workers`."""
        num_more = int(_WORKERS_SHARE * resources.read_memory_available()) // max(worker_bytes, 1)
        return max(1, min(max_workers, 1 + num_more))

    def is_too_large(self, size: int, size_after_setup: int, num_workers: int) -> bool:
        """Whether a worker is above its share of memory, and not merely because its set-up is that large."""
        return size > _WORKERS_SHARE * self._limit / num_workers and size > _GROWTH_ALLOWED * size_after_setup

    def is_short(self) -> bool:
        """Whether memory is nearly used up; true at most every few seconds."""
        now = monotonic()
        if now - self._last_shrink < _SHRINK_SECONDS or resources.read_memory_available() > _SHORT_BELOW * self._limit:
            return False
        self._last_shrink = now
        return True

    def has_oom_killer_fired(self) -> bool:
        """Whether the kernel has killed a process for lack of memory since the last call."""
        num_kills, self._num_kills = self._num_kills, resources.count_oom_kills()
        return self._num_kills > num_kills
