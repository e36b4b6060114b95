"""The workers of a job: how many there should be, which are ready, busy or leaving, and which must be replaced.

They are borrowed from a pool. What happens on every turn of the scheduler costs the same for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import SetupError
from gristmill.engine.failure_report import add_note
from gristmill.engine.worker_pool import LEAVE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.engine.backend import Died, Event, WorkerHandle, WorkerSpec
    from gristmill.engine.machine import MemoryWatch
    from gristmill.engine.worker.chunk import Chunk
    from gristmill.engine.worker.pickling import CapturedError
    from gristmill.engine.worker_pool import WorkerPool


_MAX_SETUP_DEATHS = 3
_AWAY_SECONDS = 2.0
"""A pause between two turns after which the caller must have done something else."""
_SENDING_SECONDS = 1.0
"""How often it is checked whether more bytes have arrived from a worker that sends a result."""


@dataclass(slots=True, eq=False)
class PooledWorker:
    """A worker with everything that the scheduler knows about it."""

    handle: WorkerHandle
    is_started: bool
    """Whether it was started for this job, and has had no other one before."""
    last_heard: float
    """The last time when bytes arrived from the worker, or when it was not in the middle of sending."""
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """Chunks that were sent to the worker and have not ended, by number."""
    is_ready: bool = False
    is_leaving: bool = False
    leave_by: float = inf
    bytes_last_heard: int = -1
    is_isolated: bool = False
    """Whether it was started to run one suspect item with no other worker alive on its node."""
    is_retiring: bool = False
    """Whether it stops when its chunks are done: it has grown too large, or the pool has shrunk."""
    busy_since: float = 0.0
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

    def unfinished_chunks(self) -> list[Chunk]:
        """Return the chunks with items that have no outcome yet: first the one that it runs, last one that has run."""
        chunks = (chunk for chunk in self.chunks.values() if not chunk.is_dissolved)
        return sorted(chunks, key=lambda chunk: chunk.is_finishing)

    def unfinished_items(self) -> list[tuple[int, Any]]:
        """Return the items that were sent to it and have no outcome yet."""
        return [entry for chunk in self.unfinished_chunks() for entry in chunk.unfinished_items()]


class JobWorkers:
    """Borrows workers for a job: up to `target`, never more than there is work for, and never without end."""

    def __init__(self, pool: WorkerPool, spec: WorkerSpec, target: int) -> None:
        self._pool = pool
        self._spec = spec
        self.target = target
        self._workers: dict[WorkerHandle, PooledWorker] = {}
        self._idle: dict[PooledWorker, None] = {}
        """Workers that may be sent a chunk, the one that was busy last at the end: its caches are warm."""
        self._busy: set[PooledWorker] = set()
        self._fillable: dict[PooledWorker, None] = {}
        """Busy workers that may hold another chunk."""
        self._leaving: set[PooledWorker] = set()
        self._was_ready = False
        self._setup_failures = 0
        self._last_turn = self._check_at = monotonic()
        self._was_away = False
        self._setup_error: BaseException | None = None
        self._waits_for_first = False
        """Whether a set-up failed before any succeeded: no worker is started unless one under way gets ready."""

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[PooledWorker]:
        return iter(self._workers.values())

    def __getitem__(self, handle: WorkerHandle) -> PooledWorker:
        return self._workers[handle]

    def open(self) -> None:
        """Begin to borrow from the pool."""
        self._pool = self._pool.lend()

    def wait(self, timeout: float | None) -> list[Event]:
        """Return the events of these workers since the last call; wait up to `timeout` seconds if there are none."""
        return self._pool.wait(timeout)

    def close(self, *, at_once: bool) -> None:
        """Give the workers back; those that are busy are killed."""
        for worker in self:
            if worker.chunks or worker.timed_out_item is not None:
                worker.handle.kill()
            if worker.chunks or worker.is_leaving or worker.timed_out_item is not None:
                self._pool.dismiss(worker.handle)
            else:
                self._pool.give_back(worker.handle, self._spec)
        self._workers.clear()
        self._pool.end_job(at_once=at_once)

    @property
    def is_busy(self) -> bool:
        """Whether a worker has a chunk."""
        return bool(self._busy)

    @property
    def num_busy(self) -> int:
        """The number of workers that have a chunk."""
        return len(self._busy)

    @property
    def is_alone(self) -> bool:
        """Whether no worker is left, of this job or in its pool."""
        return not self._workers and not self._pool.num_unused

    def has_items_before(self, end: float) -> bool:
        """Whether a worker has an item with a number below `end`."""
        if end == inf:
            return self.is_busy
        return any(index < end for worker in self._busy for index, _ in worker.unfinished_items())

    def start_missing(self, num_workers: int) -> list[PooledWorker]:
        """Borrow workers until `num_workers` stay, but at most `target`; return the new ones."""
        if self._waits_for_first:
            return []
        num_staying = len(self._workers) - len(self._leaving)
        return [self.start() for _ in range(min(self.target, num_workers) - num_staying)]

    def start(self, *, isolated: bool = False, node: str | None = None) -> PooledWorker:
        """Borrow one more worker; an isolated one is a new process, if possible on this node."""
        handle, is_started = self._pool.take_worker(self._spec, is_new=isolated, node=node)
        worker = PooledWorker(handle, is_started, last_heard=monotonic(), is_isolated=isolated)
        self._workers[handle] = worker
        return worker

    def take_idle(self) -> PooledWorker | None:
        """Take a worker that can be sent a chunk; None if there is none. `put_idle` if it is not sent one."""
        while self._idle:
            worker, _ = self._idle.popitem()
            if worker.can_take_more and not worker.is_isolated:  # that one is kept for its item
                return worker
        return None

    def put_idle(self, worker: PooledWorker) -> None:
        """Note that a worker can be sent a chunk."""
        self._idle[worker] = None

    def find_fillable(self) -> PooledWorker | None:
        """Find a busy worker that can be sent another chunk; None if there is none."""
        while self._fillable:
            worker = next(reversed(self._fillable))
            if worker.can_take_more and not worker.is_isolated:
                return worker
            del self._fillable[worker]
        return None

    def begin_chunk(self, worker: PooledWorker, chunk: Chunk) -> None:
        """Note that a chunk was sent to a worker."""
        chunk.was_sent_ahead = any(not other.is_finishing for other in worker.chunks.values())
        if not worker.chunks:
            worker.busy_since = monotonic()
        worker.chunks[chunk.number] = chunk
        worker.num_items += len(chunk.items)
        self._busy.add(worker)
        self._idle.pop(worker, None)
        self._note_room(worker)

    def begin_finishing(self, worker: PooledWorker, chunk: Chunk) -> None:
        """Note that a worker only waits for what a chunk has left under way: it can be sent another one."""
        chunk.is_finishing = True
        chunk.counts, worker.counts = worker.counts, {}
        worker.busy_since = monotonic()
        if all(other.is_finishing for other in worker.chunks.values()):  # else it runs one that was sent ahead
            self.put_idle(worker)

    def end_chunk(self, worker: PooledWorker, chunk: Chunk) -> None:
        """Note that a chunk has ended. The worker leaves if it was to do so."""
        del worker.chunks[chunk.number]
        if not chunk.is_finishing:
            worker.busy_since = monotonic()
        self._note_room(worker)
        if not worker.chunks:
            self._busy.discard(worker)
            if worker.is_retiring:
                self.stop_worker(worker)
            else:
                self.put_idle(worker)

    def _note_room(self, worker: PooledWorker) -> None:
        self._fillable.pop(worker, None)
        if 0 < len(worker.chunks) < self._pool.max_chunks:
            self._fillable[worker] = None

    def stop_worker(self, worker: PooledWorker) -> None:
        """Let an idle worker exit. A worker that is still in its set-up is killed, since nothing would be lost."""
        if not worker.is_leaving:
            worker.is_leaving = True
            worker.leave_by = monotonic() + LEAVE_SECONDS
            self._leaving.add(worker)
            self._idle.pop(worker, None)
            if worker.is_ready:
                worker.handle.stop()
            else:
                worker.handle.kill()

    def stop_all(self) -> None:
        """Let all workers exit, also those of the pool that this job has not borrowed."""
        for worker in self:
            self.stop_worker(worker)
        self._pool.keep_spares(0)

    def make_room_for(self, waiting: PooledWorker) -> None:
        """Let all workers exit but one that waits for a place."""
        for worker in self:
            if worker is not waiting:
                self.stop_worker(worker)

    def choose_node_to_empty(self, last_node: str | None) -> str | None:
        """Choose the node with the fewest busy workers, if possible not the last one; None if there are not two."""
        num_busy: dict[str, int] = {}
        for worker in self:
            if worker.handle.node is not None:
                num_busy[worker.handle.node] = num_busy.get(worker.handle.node, 0) + bool(worker.chunks)
        if len(num_busy) < 2:
            return None
        return min(num_busy, key=lambda node: (node == last_node, num_busy[node]))

    def empty_node(self, node: str) -> bool:
        """Retire the workers on a node, and stop those that may yet be placed there; returns whether none is left."""
        self._pool.keep_spares(0)
        on_node = [worker for worker in self if worker.handle.node in (node, None)]
        for worker in on_node:
            worker.is_retiring = True
            if not worker.chunks:
                self.stop_worker(worker)
        return not on_node and not self._pool.num_unused

    def find_other_node(self, node: str | None) -> str | None:
        """Find a node other than this one; None if there is none, or it does not matter."""
        return None if node is None else self._pool.find_other_node(node)

    def stop_surplus(self) -> None:
        """After `target` fell: retire the newest workers. They finish what they were sent."""
        if len(self._workers) - len(self._leaving) > self.target:
            staying = [worker for worker in self if not (worker.is_leaving or worker.is_retiring)]
            for worker in staying[self.target :]:
                worker.is_retiring = True
                if not worker.chunks:
                    self.stop_worker(worker)

    def limit_spares(self) -> None:
        """Let workers of the pool exit that this job will not borrow: there is no memory for more than `target`."""
        self._pool.keep_spares(max(0, self.target - len(self._workers)))

    def seconds_to_check(self) -> float:
        """Seconds until `kill_overdue` has something to do."""
        return self._check_at - monotonic()

    def kill_overdue(self, timeout: float) -> None:
        """Kill workers whose item exceeds its timeout, or that fell silent while sending its result.

        A worker that sends its result has stopped its clock (`Recorder.stop_clock`), because the parent may be slow to
        read. Its time then counts from the last byte that arrived.

        Called on every turn. The workers are looked at only when an item can be late: one that starts after a look
        cannot be late within `timeout` seconds of it.
        """
        now = monotonic()
        # While the caller did something else, nothing was read from the sockets, so silence proves nothing.
        self._was_away |= now - self._last_turn > _AWAY_SECONDS
        self._last_turn = now
        if now < self._check_at:
            return
        self._check_at = now + timeout
        for worker in self._busy:
            note = worker.handle.current()
            is_sending = note is not None and note[0] == inf
            if not is_sending or self._was_away or worker.bytes_last_heard != worker.handle.num_bytes_received():
                worker.last_heard, worker.bytes_last_heard = now, worker.handle.num_bytes_received()
            if note is not None and worker.timed_out_item is None:
                started = note[0] if note[0] < inf else worker.last_heard
                if now - started > timeout:
                    worker.timed_out_item = note[1]
                    worker.handle.kill()
                else:
                    next_look = started + timeout if not is_sending else min(started + timeout, now + _SENDING_SECONDS)
                    self._check_at = min(self._check_at, next_look)
        self._was_away = False

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
        for worker in self._leaving:
            if now > worker.leave_by:
                worker.handle.kill()

    def mark_ready(self, worker: PooledWorker) -> None:
        """Note that a set-up succeeded; further workers may be started."""
        worker.is_ready = True
        self.put_idle(worker)
        self._was_ready = True
        self._waits_for_first = False
        self._setup_failures = 0

    def remove(self, event: Died) -> PooledWorker:
        """Remove a dead worker and return it.

        Raises the set-up's error when no worker can get ready. Two cases end the attempts:

        * No set-up ever succeeded, and one raised or three died: the cause is the set-up itself.
        * Others got ready, but three in a row failed: the job continues with one worker fewer, down to none.
        """
        worker = self._workers.pop(event.worker)
        self._idle.pop(worker, None)
        self._fillable.pop(worker, None)
        self._busy.discard(worker)
        self._leaving.discard(worker)
        if not (worker.is_ready or worker.is_leaving or event.is_blameless):
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
    if event.out_of_memory:
        hint = "free memory on the machine, or use fewer workers; the same call or command may then succeed"
    error = SetupError(f"the worker {event.cause} while it was being set up", help=hint, signal=event.signal)
    if event.crash_text:
        error.add_note(f"in the worker:\n{event.crash_text.rstrip()}")
    return error
