"""Workers that outlive jobs: the pool owns them, and lends them to one scheduler after another.

A worker that is given back drops its job and waits as a spare; the next job is sent to it as a message, so that what it
has imported and compiled is not loaded again. What it did before must not show in results: a job that runs code of the
user gets workers that have had no other job, and they are not used again (`Job.runs_user_code`).

A pool that keeps no workers serves one job, and ends them with it.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from gristmill.engine.backend import Died, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from gristmill.engine.backend import Backend, Event, WorkerHandle
    from gristmill.engine.worker.job import Job


LEAVE_SECONDS = 2.0
"""How long a worker may take to exit after it was stopped: a thread of the user's function may keep it alive."""


class WorkerPool:
    """The workers of one backend, which is opened for the first worker. Closing the pool ends all of them."""

    def __init__(
        self,
        backend: str,
        open_backend: Callable[[], Backend],
        *,
        places: Sequence[Sequence[int]] = (),
        keeps_workers: bool = False,
    ) -> None:
        """Make a pool without workers; `places` are for pinned ones, one each in turn."""
        self.backend = backend
        """The name of the backend."""
        self._open_backend = open_backend
        self._places = places
        self._keeps_workers = keeps_workers
        self._opened: Backend | None = None
        self._slots: dict[WorkerHandle, int] = {}
        """All workers that have not ended, each with the lowest number that was free at its start."""
        self._free_slots: list[int] = []
        self._spares: dict[WorkerHandle, bool] = {}
        """Workers that wait for a job, and whether they have had none before."""
        self._leaving: dict[WorkerHandle, float] = {}
        """Workers that were told to exit after their job had ended, and the time at which they are killed."""
        self._is_lent = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=error is not None)

    @property
    def num_unused(self) -> int:
        """The number of workers that are alive but not lent."""
        return len(self._spares) + len(self._leaving)

    def start_ahead(self, num_workers: int, job: Job) -> None:
        """Start workers before there is work for them; `job` imports what they will need."""
        spec = WorkerSpec(job, returns_unstarted=False)
        with suppress(OSError):  # the limit of processes or of open files: the first job reports it
            for _ in range(len(self._slots), num_workers):
                handle = self._start()
                handle.assign(spec)
                self._spares[handle] = True

    def lend(self) -> WorkerPool:
        """Begin a job; returns the pool that it uses. A job inside of another one gets a separate pool."""
        if self._is_lent:
            return WorkerPool(self.backend, self._open_backend, places=self._places).lend()
        self._is_lent = True
        if self._spares:
            self.wait(0.0)  # some may have died since the last job
        return self

    def take_worker(
        self, spec: WorkerSpec, *, is_new: bool = False, node: str | None = None
    ) -> tuple[WorkerHandle, bool]:
        """Take a spare worker, or start one if there is none or it must be new. Returns it and whether it is new."""
        if is_new:
            handle = None
        elif spec.job.runs_user_code:
            handle = next((spare for spare, is_unused in self._spares.items() if is_unused), None)
            if handle is None and self._spares:
                self._stop_spare()  # it makes room for the new one
        else:
            handle = next(reversed(self._spares), None)
        is_started = handle is None
        if handle is None:
            handle = self._start(node)
        else:
            del self._spares[handle]
        handle.assign(spec)
        return handle, is_started

    @property
    def max_chunks(self) -> int:
        """How many chunks a worker may hold."""
        return self._open().max_chunks

    def find_other_node(self, node: str) -> str | None:
        """Find a node other than this one; None if there is none."""
        return self._open().find_other_node(node)

    def give_back(self, handle: WorkerHandle, spec: WorkerSpec) -> None:
        """Take an idle worker back from a job that has ended."""
        if not self._keeps_workers:
            return  # `end_job` ends it
        # One that waits for a place would take it from the workers of the next job, which might then wait forever.
        if spec.job.runs_user_code or not handle.is_placed:
            self.dismiss(handle)
        else:
            handle.assign(None)
            self._spares[handle] = False

    def dismiss(self, handle: WorkerHandle) -> None:
        """Let a worker exit. Its end is no longer reported."""
        handle.stop()
        self._leaving[handle] = monotonic() + LEAVE_SECONDS

    def keep_spares(self, num_workers: int) -> None:
        """Let all spare workers exit but some."""
        while len(self._spares) > num_workers:
            self._stop_spare()

    def wait(self, timeout: float | None) -> list[Event]:
        """Wait for events as the backend does; return those of lent workers."""
        now = monotonic()
        for handle, deadline in self._leaving.items():
            if now > deadline:
                handle.kill()
        events = []
        for event in self._open().wait(timeout):
            if event.worker not in self._spares and event.worker not in self._leaving:
                events.append(event)
            if isinstance(event, Died):
                heapq.heappush(self._free_slots, self._slots.pop(event.worker))
                self._spares.pop(event.worker, None)
                self._leaving.pop(event.worker, None)
        return events

    def end_job(self, *, at_once: bool) -> None:
        """End a job whose workers have been given back or killed."""
        self._is_lent = False
        if not self._keeps_workers:
            self.close(at_once=at_once)

    def close(self, *, at_once: bool) -> None:
        """End all workers: at once, or after a moment in which idle ones can exit by themselves."""
        if self._opened is not None:
            self._opened.close(at_once=at_once)
            self._opened = None

    def _open(self) -> Backend:
        if self._opened is None:
            self._opened = self._open_backend()
        return self._opened

    def _start(self, node: str | None = None) -> WorkerHandle:
        # The lowest free number, not a running one: a replaced worker gets the place of the one that died.
        slot = self._free_slots[0] if self._free_slots else len(self._slots)
        cpus = self._places[slot % len(self._places)] if self._places else None
        handle = self._open().start(cpus, node=node)
        self._slots[handle] = slot
        if self._free_slots:
            heapq.heappop(self._free_slots)
        return handle

    def _stop_spare(self) -> None:
        handle, _ = self._spares.popitem()
        self.dismiss(handle)
