"""The interface between the scheduler and the places where work runs.

A backend starts workers, carries chunks to them and reports what happens as events. It decides nothing: order, retries,
timeouts, attribution of deaths, memory and progress belong to the scheduler. All calls return at once, except `wait`.

A worker starts without a job and lives until it is stopped. `assign` gives it one, and later another:

    start ─▶ assign(job 1) ─Ready─▶ send(chunk) ─Results─▶ … ─▶ assign(None) ─▶ assign(job 2) ─Ready─▶ … ─▶ stop ─Died─▶
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import UnpicklableError
from gristmill.engine.worker import pickling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from gristmill.engine.worker.chunk import Chunk, ChunkResults
    from gristmill.engine.worker.job import Job
    from gristmill.engine.worker.pickling import CapturedError
    from gristmill.engine.worker.recorder import Note


@dataclass(frozen=True, slots=True)
class RemoteUse:
    """The use of one worker on another machine, as its node has told last."""

    cpu_seconds: float
    memory_bytes: int
    peak_bytes: int


@dataclass(frozen=True, eq=False)
class WorkerSpec:
    """A job with the settings that all its workers share."""

    job: Job
    returns_unstarted: bool
    """Whether a chunk that takes too long returns its unstarted items."""
    on_counts: Callable[[WorkerHandle, dict[str, int]], None] | None = None
    """Called instead of a `Counts` event by a worker in the scheduler's own thread, whose events come late."""

    @cached_property
    def pickled_job(self) -> bytes:
        """The job for workers in other processes, pickled once for all of them."""
        return self._pickle(())

    @cached_property
    def pickled_job_with_modules(self) -> bytes:
        """The job for workers on other machines: the user's own modules travel with it."""
        from gristmill.runtime.source_code import find_project_modules  # noqa: PLC0415  (only for other machines)

        return self._pickle(find_project_modules())

    def _pickle(self, by_value: Sequence[ModuleType]) -> bytes:
        try:
            return pickling.function_to_bytes(self.job, by_value)
        except Exception as error:
            hint = "create what it captures (locks, connections, open files) inside the worker, in setup"
            raise UnpicklableError(f"the function cannot be sent to workers: {error}", help=hint) from error


class WorkerHandle(Protocol):
    """The scheduler's view of one worker, which runs one chunk after another. Hashable by identity."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The process whose memory is measured; None where the worker has no separate process."""

    @property
    def node(self) -> str | None:
        """The machine that it runs on; None: this one, or not known yet."""

    @property
    def host(self) -> str:
        """The name of that machine; empty: this one, or not known yet."""

    @property
    def is_placed(self) -> bool:
        """Whether a machine runs it; else it waits until one has room for it."""

    @property
    def remote_use(self) -> RemoteUse | None:
        """What it has used, where it can only be asked of its machine; None: read that of its process."""

    def assign(self, spec: WorkerSpec | None) -> None:
        """Give an idle worker a job instead of the one it has. `Ready`, or `SetupFailed` and `Died`, follow.

        With None it drops its job and the memory of it, and no event follows. Raises `UnpicklableError`.
        """

    def send(self, chunk: Chunk) -> int:
        """Queue a chunk and return its size in bytes. Raises what pickling an item raises; then nothing is sent."""

    def current(self) -> Note | None:
        """Return what the worker is doing now; None if it is not inside an item."""

    def read_counts(self) -> dict[str, int]:
        """Return the records and bytes of the item in `current` so far, sent or not; {} if they are not known."""

    def num_bytes_received(self) -> int:
        """Return a count that grows while data arrives from the worker."""

    def stop(self) -> None:
        """Let the worker exit after the chunks it was sent. A `Died` event follows."""

    def kill(self) -> None:
        """End the worker now, even if it is busy. A `Died` event follows."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has finished the set-up of the job that it was given last."""

    worker: WorkerHandle


@dataclass(frozen=True, slots=True)
class SetupFailed:
    """The worker could not load the job, or its set-up raised. A `Died` event follows."""

    worker: WorkerHandle
    error: CapturedError


@dataclass(frozen=True, slots=True)
class Results:
    """Consecutive items of a chunk have ended. With `last` the chunk has ended, though perhaps not all of its items."""

    worker: WorkerHandle
    chunk: int
    results: ChunkResults
    last: bool
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Finishing:
    """All items of a chunk have run; the worker can run another chunk while it waits for what they left under way."""

    worker: WorkerHandle
    chunk: int


@dataclass(frozen=True, slots=True)
class Undecodable:
    """The items of a chunk, or some of its results, could not be unpickled on the other side."""

    worker: WorkerHandle
    chunk: int
    error: CapturedError
    last: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """A running task has sent counters."""

    worker: WorkerHandle
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Died:
    """The worker has ended, on request or not. Everything that it sent before has been reported."""

    worker: WorkerHandle
    cause: str
    """The cause in words: `was killed by SIGSEGV`, `exited with code 3`."""
    signal: str | None = None
    item: int = -1
    """The number of the item that it was running, -1 if none."""
    position: int = -1
    """The position inside the item, if the function reported one."""
    crash_text: str = ""
    is_blameless: bool = False
    """Whether no item can be the cause: its machine was lost."""
    out_of_memory: bool = False
    """Whether the worker was killed for lack of memory, where the backend knows that."""


Event = Ready | SetupFailed | Results | Finishing | Undecodable | Counts | Died


class Backend(Protocol):
    """A place to run chunks. The scheduler calls all methods, from one thread."""

    can_kill: bool
    """Whether workers can be ended from outside. Only then can timeouts be kept and deaths survived."""

    is_local: bool
    """Whether workers share the memory of this machine, so that it limits their number."""

    max_chunks: int
    """How many chunks a worker may hold: the one that it runs, and where messages take long one that waits there."""

    def start(self, cpus: Sequence[int] | None, *, node: str | None = None) -> WorkerHandle:
        """Start a worker without a job, on these CPUs alone if there are some, and on a node if one is named."""

    def find_other_node(self, node: str) -> str | None:
        """Find a node other than this one; None if there is none."""

    def wait(self, timeout: float | None) -> list[Event]:
        """Return the events since the last call; wait up to `timeout` seconds if there are none."""

    def close(self, *, at_once: bool) -> None:
        """End all workers: at once, or after a moment in which idle ones can exit by themselves."""
