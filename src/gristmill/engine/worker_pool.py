"""The workers of a job: how many there should be, who is ready, busy or leaving, and who is to be replaced."""

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
    from gristmill.engine.captured_error import CapturedError
    from gristmill.engine.chunk import Chunk
    from gristmill.engine.memory import MemoryWatch

_MAX_SETUP_DEATHS = 3
_LEAVE_SECONDS = 2.0
_AWAY_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class PooledWorker:
    """A worker as the scheduler sees it."""

    worker: WorkerHandle
    slot: int
    last_heard: float
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """What it has been sent and has not ended."""
    is_ready: bool = False
    is_leaving: bool = False
    leave_by: float = inf
    bytes_last_heard: int = -1
    is_isolated: bool = False
    """It was started to run one suspect item with no other worker around."""
    is_retiring: bool = False
    """It has grown too large or is one too many; it goes when its chunks are done."""
    num_items: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """What its current item has counted so far; taken back if the item does not end well."""
    timed_out_item: int | None = None
    bytes_after_setup: int = 0
    killed_at_bytes: int | None = None
    """It was ended for its size."""
    setup_error: CapturedError | None = None

    @property
    def can_take_more(self) -> bool:
        return self.is_ready and not (self.is_leaving or self.is_retiring or self.timed_out_item is not None)

    def unfinished_items(self) -> list[tuple[int, Any]]:
        """The items that it has been sent and that are still its own."""
        return [entry for chunk in self.chunks.values() if not chunk.dissolved for entry in chunk.unfinished_items()]


class WorkerPool:
    """Starts workers up to `target`. Never more than there is work for, and never without end."""

    def __init__(self, backend: Backend, spec: WorkerSpec, target: int, cpus: Sequence[int] | None) -> None:
        self._backend = backend
        self._spec = spec
        self._cpus = cpus
        self.target = target
        self._members: dict[WorkerHandle, PooledWorker] = {}
        self._was_ready = False
        self._setup_failures = 0
        self._looked = monotonic()
        self._setup_problem: BaseException | None = None
        self._waits_for_first = False
        """Some set-up failed: no more are started unless one that is under way succeeds."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[PooledWorker]:
        return iter(self._members.values())

    def __getitem__(self, worker: WorkerHandle) -> PooledWorker:
        return self._members[worker]

    @property
    def is_busy(self) -> bool:
        return any(member.chunks for member in self)

    def has_items_before(self, end: float) -> bool:
        """Some worker has items with a number below `end`."""
        return any(
            member.chunks if end == inf else any(i < end for i, _ in member.unfinished_items()) for member in self
        )

    def start_missing(self, wanted: int) -> list[PooledWorker]:
        if self._waits_for_first:
            return []
        staying = sum(1 for member in self if not member.is_leaving)
        return [self.start() for _ in range(min(self.target, wanted) - staying)]

    def start(self, *, alone: bool = False) -> PooledWorker:
        slot = min(set(range(len(self) + 1)) - {member.slot for member in self})
        cpu = self._cpus[slot % len(self._cpus)] if self._cpus else None
        worker = self._backend.start(self._spec, cpu)
        member = self._members[worker] = PooledWorker(worker, slot, last_heard=monotonic(), is_isolated=alone)
        return member

    def stop_worker(self, member: PooledWorker) -> None:
        """Let an idle worker go; one that is still being set up need not finish that."""
        if not member.is_leaving:
            member.is_leaving = True
            member.leave_by = monotonic() + _LEAVE_SECONDS
            if member.is_ready:
                member.worker.stop()
            else:
                member.worker.kill()

    def kill_overdue(self, timeout: float) -> None:
        """End the workers whose item runs too long, or who fell silent in the middle of sending its result."""
        now = monotonic()
        # While the caller was away nobody listened, so nobody could be heard.
        was_away, self._looked = now - self._looked > _AWAY_SECONDS, now
        for member in self:
            note = member.worker.current()
            is_sending = note is not None and note[0] == inf
            if not is_sending or was_away or member.bytes_last_heard != member.worker.num_bytes_received():
                member.last_heard, member.bytes_last_heard = now, member.worker.num_bytes_received()
            if note is not None and member.timed_out_item is None:
                started = note[0] if note[0] < inf else member.last_heard
                if now - started > timeout:
                    member.timed_out_item = note[1]
                    member.worker.kill()

    def kill_oversized(self, max_growth_bytes: int, memory: MemoryWatch) -> None:
        """End the workers that have become too large since their set-up."""
        for member in self:
            if member.is_ready and member.worker.pid is not None and member.killed_at_bytes is None:
                size = memory.size_of(member.worker.pid)
                if size > member.bytes_after_setup + max_growth_bytes:
                    member.killed_at_bytes = size
                    member.worker.kill()

    def kill_lingering(self) -> None:
        """A thread that the function left running can keep a worker from leaving."""
        now = monotonic()
        for member in self:
            if now > member.leave_by:
                member.worker.kill()

    def stop_surplus(self) -> None:
        """After `target` fell: the newest workers leave, when they have ended what they were sent."""
        staying = [member for member in self if not (member.is_leaving or member.is_retiring)]
        for member in staying[self.target :]:
            member.is_retiring = True
            if not member.chunks:
                self.stop_worker(member)

    def mark_ready(self, member: PooledWorker) -> None:
        member.is_ready = True
        self._was_ready = True
        self._waits_for_first = False
        self._setup_failures = 0

    def remove(self, event: Died) -> PooledWorker:
        """Take a dead worker off the list. Raises when none can be made ready."""
        member = self._members.pop(event.worker)
        if not member.is_ready and not member.is_leaving:
            self._setup_failures += 1
            self._setup_problem = _make_setup_error(member, event)
            if self._was_ready and self._setup_failures >= _MAX_SETUP_DEATHS:
                # Others got through, so the job can go on with them; but not by trying for ever.
                self.target -= 1
                self._setup_failures = 0
            elif not self._was_ready and (member.setup_error or self._setup_failures >= _MAX_SETUP_DEATHS):
                self._waits_for_first = True
        given_up = self.target < 1 or self._waits_for_first
        if given_up and self._setup_problem is not None and all(other.is_leaving for other in self):
            raise self._setup_problem
        return member


def _make_setup_error(member: PooledWorker, event: Died) -> BaseException:
    if member.setup_error is not None:
        error = member.setup_error.to_exception()
        add_note(error, "gristmill: raised while a worker was being set up, before any item was run")
        if member.setup_error.raised is None:
            add_note(error, f"in the worker:\n{member.setup_error.traceback.rstrip()}")
        return error
    hint = 'see what setup and the imports of the function do; backend="serial" runs them here'
    error = SetupError(f"the worker {event.cause} while it was being set up", help=hint, signal=event.signal)
    if event.crash_text:
        error.add_note(f"in the worker:\n{event.crash_text.rstrip()}")
    return error
