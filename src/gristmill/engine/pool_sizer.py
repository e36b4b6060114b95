"""How many workers a job may have: as many as fit into memory, fewer when memory runs out, never less than one.

The size of a worker is known only after its set-up, so the first one decides how many fit. Later there is one worker
fewer each time that memory gets short or the kernel kills a worker for lack of it. A job that lost workers to one item
gets them back when that item turns out to need too much memory even alone: the other items are not the cause.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gristmill.core.quantities import format_bytes

if TYPE_CHECKING:
    from gristmill.engine.backend import Died
    from gristmill.engine.job_workers import JobWorkers, PooledWorker
    from gristmill.engine.machine import MemoryWatch
    from gristmill.engine.observer import Observer


class PoolSizer:
    """Sets how many workers a job has. Without a `MemoryWatch` (workers that are not processes) memory is ignored."""

    def __init__(
        self,
        workers: JobWorkers,
        memory: MemoryWatch | None,
        observer: Observer,
        *,
        max_workers: int | None,
        max_growth_bytes: int | None,
    ) -> None:
        """Watch the workers of a job. With `max_workers`, the first one that is ready decides how many fit."""
        self._workers = workers
        self._memory = memory
        self._observer = observer
        self._max_workers = max_workers
        self._max_growth_bytes = max_growth_bytes
        self._workers_lost_to: Counter[int] = Counter()
        """By item: how many workers the job lost when the kernel killed the worker that ran it."""

    def measure(self, worker: PooledWorker) -> None:
        """Note the size of a worker after its set-up. The first one decides how many workers fit."""
        if self._memory is None or worker.handle.pid is None:
            return
        worker.bytes_after_setup = self._memory.size_of(worker.handle.pid)
        if self._max_workers is not None:
            num_fitting = self._memory.count_fitting_workers(worker.bytes_after_setup, self._max_workers)
            size = format_bytes(worker.bytes_after_setup)
            self._workers.target = self._max_workers
            self.shrink_to(num_fitting, f"memory has no room for more: a worker takes {size} after its set-up")
            self._max_workers = None

    def check(self) -> None:
        """Kill workers that exceed their limit, retire those above their share, and shrink if memory is short."""
        if self._memory is None:
            return
        if self._max_growth_bytes is not None:
            self._workers.kill_oversized(self._max_growth_bytes, self._memory)
        if self._memory.is_due():
            self._retire_large_workers(self._memory)
            if self._memory.is_short():
                self.shrink_to(self._workers.target - 1, "memory is nearly used up")

    def was_killed_by_kernel(self, event: Died) -> bool:
        """Whether the kernel killed a worker for lack of memory. To be asked once for each death."""
        if event.out_of_memory:
            return True
        # The kernel's counter is the only witness: an out-of-memory kill looks like any other SIGKILL.
        return event.signal == "SIGKILL" and self._memory is not None and self._memory.has_oom_killer_fired()

    def shrink_for(self, item: int) -> None:
        """Continue with one worker fewer after the kernel killed the worker that ran this item."""
        num_fewer = self.shrink_to(self._workers.target - 1, "a worker was killed because memory ran out")
        self._workers_lost_to[item] += num_fewer

    def restore_after(self, item: int) -> None:
        """Give the job back the workers that it lost to an item, which was the cause and does not run again."""
        self._workers.target += self._workers_lost_to.pop(item, 0)

    def shrink_to(self, num_workers: int, reason: str) -> int:
        """Continue with fewer workers, but at least one; return how many fewer."""
        num_fewer = max(0, self._workers.target - max(1, num_workers))
        if num_fewer:
            self._workers.target -= num_fewer
            self._workers.limit_spares()
            self._observer.report_event("workers_reduced", workers=self._workers.target, reason=reason)
        return num_fewer

    def _retire_large_workers(self, memory: MemoryWatch) -> None:
        for worker in self._workers:
            if worker.is_ready and worker.handle.pid is not None and not worker.is_retiring:
                size = memory.size_of(worker.handle.pid)
                worker.is_retiring = memory.is_too_large(size, worker.bytes_after_setup, self._workers.target)
                if worker.is_retiring:
                    self._observer.report_event("worker_recycled", worker=worker.handle.name, bytes=size)
                    if not worker.chunks:
                        self._workers.stop_worker(worker)
