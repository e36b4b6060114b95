"""The workers of a job: how many there should be, which are ready, busy or leaving, and which must be replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import SetupError
from gristmill.engine.failure_report import add_note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.engine.backend import Backend, Died, WorkerHandle, WorkerSpec
    from gristmill.engine.memory import MemoryWatch
    from gristmill.engine.worker.binding import Place
    from gristmill.engine.worker.captured_error import CapturedError
    from gristmill.engine.worker.chunk import Chunk

_MAX_SETUP_DEATHS = 3
_LEAVE_SECONDS = 2.0
_AWAY_SECONDS = 2.0
"""A pause between two checks after which the caller must have done something else."""


@dataclass(slots=True, eq=False)
class PooledWorker:
    """A worker with everything that the scheduler knows about it."""

    handle: WorkerHandle
    slot: int
    """The lowest number that was free at its start; selects the place of a pinned worker."""
    last_heard: float
    """The last time when bytes arrived from the worker, or when it was not in the middle of sending."""
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """Chunks that were sent to the worker and have not ended, by number."""
    is_ready: bool = False
    is_leaving: bool = False
    leave_by: float = inf
    bytes_last_heard: int = -1
    is_isolated: bool = False
    """Whether it was started to run one suspect item with no other worker alive."""
    is_retiring: bool = False
    """Whether it stops when its chunks are done: it has grown too large, or the pool has shrunk."""
    num_items: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Counters of the current item so far; subtracted again if the item fails."""
    timed_out_item: int | None = None
    bytes_after_setup: int = 0
    killed_at_bytes: int | None = None
    """The size at which it was killed for growing too large."""
    setup_error: CapturedError | None = None

    @property
    def can_take_more(self) -> bool:
        """Whether it may be sent another chunk."""
        return self.is_ready and not (self.is_leaving or self.is_retiring or self.timed_out_item is not None)

    def unfinished_items(self) -> list[tuple[int, Any]]:
        """Return the items that were sent to it and have no outcome yet."""
        return [entry for chunk in self.chunks.values() if not chunk.is_dissolved for entry in chunk.unfinished_items()]


class WorkerPool:
    """Starts and stops workers: up to `target`, never more than there is work for, and never without end."""

    def __init__(self, backend: Backend, spec: WorkerSpec, target: int, places: Sequence[Place] | None) -> None:
        self._backend = backend
        self._spec = spec
        self._places = places
        self.target = target
        self._workers: dict[WorkerHandle, PooledWorker] = {}
        self._was_ready = False
        self._setup_failures = 0
        self._last_check = monotonic()
        self._setup_error: BaseException | None = None
        self._waits_for_first = False
        """Whether a set-up failed before any succeeded: no worker is started unless one under way gets ready."""

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[PooledWorker]:
        return iter(self._workers.values())

    def __getitem__(self, handle: WorkerHandle) -> PooledWorker:
        return self._workers[handle]

    @property
    def is_busy(self) -> bool:
        """Whether a worker has a chunk."""
        return any(worker.chunks for worker in self)

    def has_items_before(self, end: float) -> bool:
        """Whether a worker has an item with a number below `end`."""
        if end == inf:
            return self.is_busy
        return any(index < end for worker in self for index, _ in worker.unfinished_items())

    def start_missing(self, num_workers: int) -> list[PooledWorker]:
        """Start workers until `num_workers` stay, but at most `target`; return the new ones."""
        if self._waits_for_first:
            return []
        num_staying = sum(1 for worker in self if not worker.is_leaving)
        return [self.start() for _ in range(min(self.target, num_workers) - num_staying)]

    def start(self, *, isolated: bool = False) -> PooledWorker:
        """Start one more worker."""
        # The lowest free number, not a running one: a replaced worker gets the place of the one that died.
        slot = min(set(range(len(self) + 1)) - {worker.slot for worker in self})
        place = self._places[slot % len(self._places)] if self._places else None
        handle = self._backend.start(self._spec, place)
        worker = self._workers[handle] = PooledWorker(handle, slot, last_heard=monotonic(), is_isolated=isolated)
        return worker

    def stop_worker(self, worker: PooledWorker) -> None:
        """Let an idle worker exit. A worker that is still in its set-up is killed, since nothing would be lost."""
        if not worker.is_leaving:
            worker.is_leaving = True
            worker.leave_by = monotonic() + _LEAVE_SECONDS
            if worker.is_ready:
                worker.handle.stop()
            else:
                worker.handle.kill()

    def stop_surplus(self) -> None:
        """After `target` fell: retire the newest workers. They finish what they were sent."""
        staying = [worker for worker in self if not (worker.is_leaving or worker.is_retiring)]
        for worker in staying[self.target :]:
            worker.is_retiring = True
            if not worker.chunks:
                self.stop_worker(worker)

    def kill_overdue(self, timeout: float) -> None:
        """Kill workers whose item exceeds its timeout, or that fell silent while sending its result.

        A worker that sends its result has stopped its clock (`Recorder.stop_clock`), because the parent may be slow to
        read. Its time then counts from the last byte that arrived.
        """
        now = monotonic()
        # While the caller did something else, nothing was read from the sockets, so silence proves nothing.
        was_away, self._last_check = now - self._last_check > _AWAY_SECONDS, now
        for worker in self:
            note = worker.handle.current()
            is_sending = note is not None and note[0] == inf
            if not is_sending or was_away or worker.bytes_last_heard != worker.handle.num_bytes_received():
                worker.last_heard, worker.bytes_last_heard = now, worker.handle.num_bytes_received()
            if note is not None and worker.timed_out_item is None:
                started = note[0] if note[0] < inf else worker.last_heard
                if now - started > timeout:
                    worker.timed_out_item = note[1]
                    worker.handle.kill()

    def kill_oversized(self, max_growth_bytes: int, memory: MemoryWatch) -> None:
        """Kill workers that have grown by more than `max_growth_bytes` since their set-up."""
        for worker in self:
            if worker.is_ready and worker.handle.pid is not None and worker.killed_at_bytes is None:
                size = memory.size_of(worker.handle.pid)
                if size > worker.bytes_after_setup + max_growth_bytes:
                    worker.killed_at_bytes = size
                    worker.handle.kill()

    def kill_lingering(self) -> None:
        """Kill workers that were stopped and have not exited: a thread of the user's function may keep one alive."""
        now = monotonic()
        for worker in self:
            if now > worker.leave_by:
                worker.handle.kill()

    def mark_ready(self, worker: PooledWorker) -> None:
        """Note that a set-up succeeded; further workers may be started."""
        worker.is_ready = True
        self._was_ready = True
        self._waits_for_first = False
        self._setup_failures = 0

    def remove(self, event: Died) -> PooledWorker:
        """Remove a dead worker from the pool and return it.

        Raises the set-up's error when no worker can get ready. Two cases end the attempts:

        * No set-up ever succeeded, and one raised or three died: the cause is the set-up itself.
        * Others got ready, but three in a row failed: the job continues with one worker fewer, down to none.
        """
        worker = self._workers.pop(event.worker)
        if not worker.is_ready and not worker.is_leaving:
            self._setup_failures += 1
            self._setup_error = _make_setup_error(worker, event)
            if self._was_ready and self._setup_failures >= _MAX_SETUP_DEATHS:
                self.target -= 1
                self._setup_failures = 0
            elif not self._was_ready and (worker.setup_error or self._setup_failures >= _MAX_SETUP_DEATHS):
                self._waits_for_first = True
        has_given_up = self.target < 1 or self._waits_for_first
        # Set-ups still under way may succeed, so the error is raised only after the last of them has ended.
        if has_given_up and self._setup_error is not None and all(other.is_leaving for other in self):
            raise self._setup_error
        return worker


def _make_setup_error(worker: PooledWorker, event: Died) -> BaseException:
    if worker.setup_error is not None:
        error = worker.setup_error.to_exception()
        add_note(error, "gristmill: raised while a worker was being set up, before any item was run")
        if worker.setup_error.raised is None:
            add_note(error, f"in the worker:\n{worker.setup_error.traceback.rstrip()}")
        return error
    hint = 'check what setup and the imports of the function do; backend="serial" runs them in this process'
    error = SetupError(f"the worker {event.cause} while it was being set up", help=hint, signal=event.signal)
    if event.crash_text:
        error.add_note(f"in the worker:\n{event.crash_text.rstrip()}")
    return error
