"""The seam between the scheduler and the places where work runs.

A backend starts workers, carries chunks to them and reports what happens as events. It decides nothing: order, retries,
timeouts, guilt, memory and progress belong to the scheduler. All calls return at once, except `wait`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gristmill.engine.captured_error import CapturedError
    from gristmill.engine.chunk import Chunk, ChunkResults
    from gristmill.engine.job import Job
    from gristmill.engine.recorder import Note


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What every worker of a job has in common."""

    job: Job
    returns_unstarted: bool
    """Chunks that take too long return their unstarted items."""


class WorkerHandle(Protocol):
    """One place that runs one chunk after another. Hashable by identity."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The process to be measured; None where the worker is not a process of its own."""

    def send(self, chunk: Chunk) -> int:
        """Queue a chunk and give its size. Raises what the pickling of its items raises, and then sends nothing."""

    def current(self) -> Note | None:
        """What the worker is doing now, if it is inside an item."""

    def num_bytes_received(self) -> int:
        """Grows while something arrives from it."""

    def stop(self) -> None:
        """Let it end after what it has been sent. A `Died` event follows."""

    def kill(self) -> None:
        """End it now, whatever it does. A `Died` event follows."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has finished its set-up."""

    worker: WorkerHandle


@dataclass(frozen=True, slots=True)
class SetupFailed:
    """The worker could not load the job or its set-up raised. A `Died` event follows."""

    worker: WorkerHandle
    error: CapturedError


@dataclass(frozen=True, slots=True)
class Results:
    """Some items of a chunk have ended. With `last`, the chunk has, though perhaps not all of its items."""

    worker: WorkerHandle
    chunk: int
    batch: ChunkResults
    last: bool
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A chunk's items, or results of it, could not be unpickled on the other side."""

    worker: WorkerHandle
    chunk: int
    error: CapturedError
    last: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters that a running task sent."""

    worker: WorkerHandle
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Died:
    """The worker is gone, wanted or not; all that it had sent before has been reported."""

    worker: WorkerHandle
    cause: str
    """For people: `killed by SIGSEGV`, `exited with code 3`."""
    signal: str | None = None
    item: int = -1
    """Number of the item that it was running, -1 if none."""
    position: int = -1
    """Where inside the item it was, if the function said so."""
    crash_text: str = ""


Event = Ready | SetupFailed | Results | Undecodable | Counts | Died


class Backend(Protocol):
    """A place to run chunks."""

    can_kill: bool
    """Workers can be ended from outside, so that timeouts can be kept and deaths survived."""

    def start(self, spec: WorkerSpec, cpu: int | None) -> WorkerHandle:
        """Start a worker, on one CPU if asked. `Ready`, or `SetupFailed` and `Died`, follow."""

    def wait(self, timeout: float | None) -> list[Event]:
        """What has happened; waits up to `timeout` seconds if nothing has."""

    def close(self, *, at_once: bool) -> None:
        """End all workers: at once, or giving idle ones a moment to leave by themselves."""
