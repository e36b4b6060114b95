"""The workers of a job: how many there should be, who is ready, busy or leaving, and who is to be replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import SetupError
from gristmill.engine.verdict import add_note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.engine.backend import Backend, Died, Worker, WorkerSpec
    from gristmill.engine.caught import Caught
    from gristmill.engine.chunk import Chunk
    from gristmill.engine.memory import MemoryWatch

_MAX_SETUP_DEATHS = 3
_LEAVE_SECONDS = 2.0
_AWAY_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class Member:
    """A worker as the scheduler sees it."""

    worker: Worker
    slot: int
    heard: float
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """What it has been sent and has not ended."""
    ready: bool = False
    leaving: bool = False
    leave_by: float = inf
    heard_bytes: int = -1
    alone: bool = False
    """It was started to run one suspect item with no other worker around."""
    worn_out: bool = False
    """It has grown too large or is one too many; it goes when its chunks are done."""
    num_items: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """What its current item has counted so far; taken back if the item does not end well."""
    timed_out_item: int | None = None
    bytes_after_setup: int = 0
    grown_to: int | None = None
    """It was ended for its size."""
    setup_error: Caught | None = None

    @property
    def takes_more(self) -> bool:
        return self.ready and not (self.leaving or self.worn_out or self.timed_out_item is not None)

    def unfinished(self) -> list[tuple[int, Any]]:
        """The items that it has been sent and that are still its own."""
        return [entry for chunk in self.chunks.values() if not chunk.dissolved for entry in chunk.remaining()]


class Crew:
    """Starts workers up to `target`. Never more than there is work for, and never without end."""

    def __init__(self, backend: Backend, spec: WorkerSpec, target: int, cpus: Sequence[int] | None) -> None:
        self._backend = backend
        self._spec = spec
        self._cpus = cpus
        self.target = target
        self._members: dict[Worker, Member] = {}
        self._was_ready = False
        self._setup_failures = 0
        self._looked = monotonic()
        self._setup_problem: BaseException | None = None
        self._waits_for_first = False
        """Some set-up failed: no more are started unless one that is under way succeeds."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, worker: Worker) -> Member:
        return self._members[worker]

    @property
    def busy(self) -> bool:
        return any(member.chunks for member in self)

    def is_at_work_before(self, end: float) -> bool:
        """Some worker has items with a number below `end`."""
        return any(member.chunks if end == inf else any(i < end for i, _ in member.unfinished()) for member in self)

    def start_up_to(self, wanted: int) -> list[Member]:
        if self._waits_for_first:
            return []
        staying = sum(1 for member in self if not member.leaving)
        return [self.start() for _ in range(min(self.target, wanted) - staying)]

    def start(self, *, alone: bool = False) -> Member:
        slot = min(set(range(len(self) + 1)) - {member.slot for member in self})
        cpu = self._cpus[slot % len(self._cpus)] if self._cpus else None
        worker = self._backend.start(self._spec, cpu)
        member = self._members[worker] = Member(worker, slot, heard=monotonic(), alone=alone)
        return member

    def dismiss(self, member: Member) -> None:
        """Let an idle worker go; one that is still being set up need not finish that."""
        if not member.leaving:
            member.leaving = True
            member.leave_by = monotonic() + _LEAVE_SECONDS
            if member.ready:
                member.worker.stop()
            else:
                member.worker.kill()

    def kill_those_over(self, timeout: float) -> None:
        """End the workers whose item runs too long, or who fell silent in the middle of sending its result."""
        now = monotonic()
        # While the caller was away nobody listened, so nobody could be heard.
        was_away, self._looked = now - self._looked > _AWAY_SECONDS, now
        for member in self:
            note = member.worker.current()
            is_sending = note is not None and note[0] == inf
            if not is_sending or was_away or member.heard_bytes != member.worker.num_bytes_received():
                member.heard, member.heard_bytes = now, member.worker.num_bytes_received()
            if note is not None and member.timed_out_item is None:
                started = note[0] if note[0] < inf else member.heard
                if now - started > timeout:
                    member.timed_out_item = note[1]
                    member.worker.kill()

    def kill_those_grown(self, max_growth_bytes: int, memory: MemoryWatch) -> None:
        """End the workers that have become too large since their set-up."""
        for member in self:
            if member.ready and member.worker.pid is not None and member.grown_to is None:
                size = memory.size_of(member.worker.pid)
                if size > member.bytes_after_setup + max_growth_bytes:
                    member.grown_to = size
                    member.worker.kill()

    def kill_those_who_stay(self) -> None:
        """A thread that the function left running can keep a worker from leaving."""
        now = monotonic()
        for member in self:
            if now > member.leave_by:
                member.worker.kill()

    def dismiss_surplus(self) -> None:
        """After `target` fell: the newest workers leave, when they have ended what they were sent."""
        staying = [member for member in self if not (member.leaving or member.worn_out)]
        for member in staying[self.target :]:
            member.worn_out = True
            if not member.chunks:
                self.dismiss(member)

    def set_ready(self, member: Member) -> None:
        member.ready = True
        self._was_ready = True
        self._waits_for_first = False
        self._setup_failures = 0

    def remove(self, event: Died) -> Member:
        """Take a dead worker off the list. Raises when none can be made ready."""
        member = self._members.pop(event.worker)
        if not member.ready and not member.leaving:
            self._setup_failures += 1
            self._setup_problem = _setup_problem(member, event)
            if self._was_ready and self._setup_failures >= _MAX_SETUP_DEATHS:
                # Others got through, so the job can go on with them; but not by trying for ever.
                self.target -= 1
                self._setup_failures = 0
            elif not self._was_ready and (member.setup_error or self._setup_failures >= _MAX_SETUP_DEATHS):
                self._waits_for_first = True
        given_up = self.target < 1 or self._waits_for_first
        if given_up and self._setup_problem is not None and all(other.leaving for other in self):
            raise self._setup_problem
        return member


def _setup_problem(member: Member, event: Died) -> BaseException:
    if member.setup_error is not None:
        error = member.setup_error.exception()
        add_note(error, "gristmill: raised while a worker was being set up, before any item was run")
        if member.setup_error.raised is None:
            add_note(error, f"in the worker:\n{member.setup_error.traceback.rstrip()}")
        return error
    hint = 'see what setup and the imports of the function do; backend="serial" runs them here'
    error = SetupError(f"the worker {event.cause} while it was being set up", help=hint, signal=event.signal)
    if event.crash_text:
        error.add_note(f"in the worker:\n{event.crash_text.rstrip()}")
    return error
