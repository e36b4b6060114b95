"""Workers that outlive jobs: the pool owns them, and lends them to one scheduler after another.

A worker that is given back drops its job and waits as a spare; the next job is sent to it as a message, so that what it
has imported and compiled is not loaded again. What it did before must not show in results: a job that runs code of the
user gets workers that have had no other job, and they are not used again (`Job.runs_user_code`).

A pool that keeps no workers serves one job, and ends them with it.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, cast

from gristmill.engine.backend import Died, Forked, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from gristmill.engine.backend import Backend, Event, ForkingBackend, WorkerHandle
    from gristmill.engine.worker.binding import Place
    from gristmill.engine.worker.job import Job

FORK_SECONDS = 30.0
"""How long a worker may take until it forks itself: it imports modules and loads tokenizers before."""
LEAVE_SECONDS = 2.0
"""How long a worker may take to exit after it was stopped: a thread of the user's function may keep it alive."""


class WorkerPool:
    """The workers of one backend, which is opened for the first worker. Closing the pool ends all of them."""

    def __init__(
        self,
        backend: str,
        open_backend: Callable[[], Backend],
        *,
        places: Sequence[Place] = (),
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
        self._unborn: dict[WorkerHandle, int] = {}
        """Workers that will fork themselves, and into how many more."""
        self._meanwhile: list[str] = []
        self._is_lent = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=error is not None)

    @property
    def num_unused(self) -> int:
        """The number of workers that are alive but not lent."""
        return len(self._spares) + len(self._leaving) + sum(self._unborn.values())

    def start_ahead(self, num_workers: int, job: Job, *, forks: bool = False, meanwhile: Sequence[str] = ()) -> None:
        """Start workers before there is work for them; `job` imports what they will need.

        With `forks` (for worker processes), where the system allows it, one of them imports it and forks itself into
        all. Until then this process becomes the parent of orphans among its descendants: it should be our own command.
        If the first job has to wait for them, this process imports the modules `meanwhile`, which it needs later.
        """
        self._meanwhile = list(meanwhile)
        spec = WorkerSpec(job, returns_unstarted=False)
        num_missing = num_workers - len(self._slots) - sum(self._unborn.values())
        with suppress(OSError):  # the limit of processes or of open files: the first job reports it
            while num_missing > 0:
                num_copies = 0
                if forks and num_missing > 1 and not self._places:
                    handle, num_copies = cast("ForkingBackend", self._open()).start_forking(num_missing)
                    self._add(handle)
                else:
                    handle = self._start()
                if num_copies:
                    self._unborn[handle] = num_copies
                handle.assign(spec)
                self._spares[handle] = True
                num_missing -= 1 + num_copies

    def lend(self) -> WorkerPool:
        """Begin a job; returns the pool that it uses. A job inside of another one gets a pool of its own."""
        if self._is_lent:
            return WorkerPool(self.backend, self._open_backend, places=self._places).lend()
        self._is_lent = True
        self._wait_for_copies()
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
        if spec.job.runs_user_code:
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
            if isinstance(event, Forked):
                for copy in event.copies:
                    self._add(copy)
                    self._spares[copy] = True
            if isinstance(event, (Forked, Died)):
                self._unborn.pop(event.worker, None)
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

    def _wait_for_copies(self) -> None:
        """Wait until workers that fork themselves have done so: the job could only start others in their place."""
        deadline = monotonic() + FORK_SECONDS
        while self._unborn and (seconds_left := deadline - monotonic()) > 0:
            if self._meanwhile:
                import_module(self._meanwhile.pop(0))
                seconds_left = 0.0
            self.wait(seconds_left)
        for handle in self._unborn:  # it hangs
            del self._spares[handle]
            handle.kill()
            self.dismiss(handle)
        self._unborn.clear()

    def _start(self, node: str | None = None) -> WorkerHandle:
        slot = self._find_slot()
        place = self._places[slot % len(self._places)] if self._places else None
        return self._add(self._open().start(place, node=node))

    def _find_slot(self) -> int:
        # The lowest free number, not a running one: a replaced worker gets the place of the one that died.
        return self._free_slots[0] if self._free_slots else len(self._slots)

    def _add(self, handle: WorkerHandle) -> WorkerHandle:
        self._slots[handle] = self._find_slot()
        if self._free_slots:
            heapq.heappop(self._free_slots)
        return handle

    def _stop_spare(self) -> None:
        handle, _ = self._spares.popitem()
        self.dismiss(handle)
