"""The state of a run as data: what every view of it shows, what the work folder holds, what the events log repeats.

The log replays a run: each event changes the status, which is shown when its time comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import structs

from gristmill.core.errors import UsageError
from gristmill.pipeline.work_folder import STATUS, WORK_FOLDER
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.locations import decode_stored, list_names, read_stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gristmill.storage.locations import Location


MAX_WORKERS = 64
"""A status describes this many workers, those first that have been busy with their task for longest."""
_NODE_LETTERS = 8

Cause = Literal["starting", "memory", "stalled", "straggler", "starved", "reading", "machine", "computing", "unknown"]


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, and the task that it is busy with."""

    name: str
    node: str = ""
    state: Literal["starting", "idle", "busy"]
    cpu_share: float | None = None
    """The CPUs that it has used since the last look; None if not known yet."""
    memory_bytes: int = 0
    seconds: float = 0.0
    """How long it has been busy with its task."""
    task: str = ""
    """The file and byte that it is at, or the name of its task."""
    records: int = 0
    """What it has counted of its task so far."""
    bytes: int = 0

    def describe(self) -> str:
        """Describe the worker and what it is busy with, in a few words."""
        node = f" of node {self.node[:_NODE_LETTERS]}" if self.node else ""
        return f"{self.task} on {self.name}{node} for {self.seconds:,.0f} s"


class EndedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A stage or a part of a barrier that this run has finished."""

    name: str
    seconds: float
    tasks: int
    counts: dict[str, int] = {}


class Bottleneck(msgspec.Struct, frozen=True):
    """The one thing that slows a run, with a sentence for people."""

    cause: Cause = "unknown"
    text: str = "nothing was measured yet"


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run at one moment."""

    run: str
    host: str
    pid: int
    backend: str
    written: float
    """Seconds since 1970, by the clock of the machine that runs it."""
    job: str
    """The stage or the part of a barrier."""
    done: int
    total: int | None
    """The number of tasks; None if it is not known."""
    failed: int = 0
    deaths: int = 0
    num_workers: int = 0
    num_busy: int = 0
    counts: dict[str, int] = {}
    """What tasks have counted in this job, also those that are still running."""
    num_bytes: int = 0
    """The expected final value of the count `bytes`; 0 if it is not known."""
    seconds: float = 0.0
    """Seconds since the job began."""
    work_seconds: float = 0.0
    """Seconds since its first worker was ready."""
    cpu_seconds: float = 0.0
    """What the workers of a job that has ended have used in it, with their start."""
    peak_bytes: int = 0
    """The largest memory of each worker of a job that has ended, together."""
    run_seconds: float = 0.0
    seconds_left: float | None = None
    """An estimate for this job."""
    records_per_second: float = 0.0
    """Over the last seconds, as is `bytes_per_second`."""
    bytes_per_second: float = 0.0
    seconds_without_progress: float = 0.0
    workers: list[WorkerStatus] = []
    """Those first that have been busy with their task for longest."""
    ended: list[EndedJob] = []
    """The jobs of this run before this one."""
    parent_cpu_share: float | None = None
    load: float = 0.0
    """The load of the machine over the last minute."""
    cpu_pressure: float | None = None
    """The share of the last ten seconds in which some task of the machine waited for a CPU; None: not known."""
    io_pressure: float | None = None
    """The same for disks."""
    num_cpus: int = 0
    memory_limit: int = 0
    memory_available: int = 0
    workers_reduced: str = ""
    """Why there are fewer workers than were asked for, if memory is the reason."""
    bottleneck: Bottleneck = Bottleneck()
    is_over: bool = False
    """Whether the run has ended."""

    @property
    def fraction(self) -> float | None:
        """The fraction of the job that is done: by bytes, which also move inside a task, else by tasks."""
        if self.num_bytes:
            return min(self.counts.get("bytes", 0) / self.num_bytes, 1.0)
        return self.done / self.total if self.total else None

    @property
    def slowest(self) -> WorkerStatus | None:
        """The worker that has been busy with its task for longest."""
        return max((worker for worker in self.workers if worker.state == "busy"), key=lambda w: w.seconds, default=None)


def describe_slowest(status: RunStatus) -> str:
    """Describe the tasks that have been running for longest, in one line."""
    busy = [worker.describe() for worker in status.workers if worker.state == "busy"]
    return f"running: {'; '.join(busy[:5])}" if busy else "no task is running"


def read_status(output: Location) -> RunStatus | None:
    """Read what the run in a folder was doing last; None if it holds a finished dataset and no run."""
    try:
        return decode_stored(read_stored(output / STATUS), RunStatus, output / STATUS)
    except FileNotFoundError:
        if (output / MANIFEST).exists():
            return None
        if output.is_dir() and WORK_FOLDER in list_names(output):
            raise UsageError(
                f"a run was started in {output}, and has written no status yet, or was stopped before it did",
                help="ask again in some seconds; the same command resumes a run that was stopped",
            ) from None
        raise UsageError(
            f"{output} holds neither a run nor a dataset", help="name the output folder of a run"
        ) from None


class _Event(msgspec.Struct):
    """The fields of events that a status follows from."""

    time: float
    event: str
    job: str = ""
    total: int | None = None
    done: int = 0
    failed: int = 0
    deaths: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = {}
    backend: str = ""
    status: RunStatus | None = None


def read_replay(path: Path) -> Iterator[RunStatus]:
    """Read the statuses of a run, in order, from the log that `--events` wrote. `written` is the time of each.

    The log may end anywhere: the run was killed, or still goes.
    """
    status: RunStatus | None = None
    began: float | None = None
    backend = "?"
    decoder = msgspec.json.Decoder(_Event)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # it is being written
            try:
                event = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise UsageError(
                    f"{path}, line {number} is no event: {error}", help="name the file that --events wrote"
                ) from error
            began = event.time if began is None else began
            backend = event.backend or backend
            before, status = status, _apply(status, event, backend, began)
            if status is not None and status is not before:
                yield status


def _apply(status: RunStatus | None, event: _Event, backend: str, began: float) -> RunStatus | None:
    """Return the status after an event."""
    common: dict[str, Any] = {"written": event.time, "run_seconds": round(event.time - began, 1)}
    if event.event == "progress" and event.status is not None:
        return structs.replace(event.status, written=event.time)
    if event.event == "job_started":
        identity = status or RunStatus(
            run="?", host="?", pid=0, backend=backend, written=0.0, job="", done=0, total=None
        )
        return RunStatus(
            run=identity.run,
            host=identity.host,
            pid=identity.pid,
            backend=identity.backend,
            job=event.job,
            done=0,
            total=event.total,
            ended=[] if status is None else [*status.ended, _end(status)],
            **common,
        )
    if status is None:
        return None
    if event.event == "worker_died":
        return structs.replace(status, deaths=status.deaths + 1, **common)
    if event.event == "item_failed":
        return structs.replace(status, failed=status.failed + 1, **common)
    if event.event == "job_ended":
        return structs.replace(
            status,
            done=event.done,
            failed=event.failed,
            deaths=event.deaths,
            counts=event.counts,
            seconds=round(event.seconds, 1),
            num_busy=0,
            seconds_left=None,
            workers=[],
            **common,
        )
    return status


def _end(status: RunStatus) -> EndedJob:
    return EndedJob(name=status.job, seconds=status.seconds, tasks=status.done, counts=status.counts)
