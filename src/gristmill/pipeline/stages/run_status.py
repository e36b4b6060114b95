"""What a run is doing: written to the work folder every few seconds, and read from there by `gristmill status`.

The writer also watches for progress. A task that hangs shows as a run whose counts do not change.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import DamagedDatasetError, StalledError, UsageError
from gristmill.engine.tasks import Task
from gristmill.pipeline.work_folder import STATUS
from gristmill.shards.manifest import MANIFEST
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from gristmill.engine.job_workers import JobWorkers, PooledWorker
    from gristmill.engine.observer import Observer
    from gristmill.storage.locations import Location

_SECONDS_BETWEEN = 5.0
_MAX_TASKS = 5
_NODE_LETTERS = 8

_log = logging.getLogger("gristmill")


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that some worker is busy with."""

    task: str
    worker: str
    node: str = ""
    seconds: float
    """How long it has been running."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run when it was last written down."""

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
    failed: int
    deaths: int
    workers: int
    busy: int
    counts: dict[str, int]
    seconds_without_progress: float
    slowest: list[RunningTask]
    """The tasks that have been running for longest."""


class ProgressWatch:
    """Writes the status of a run, and tells when nothing moves (`engine.observer.RunWatch`)."""

    seconds_between = _SECONDS_BETWEEN

    def __init__(self, output: Location, run_id: str, backend: str, *, stall_timeout: float, stops: bool) -> None:
        self._output = output
        self._run_id = run_id
        self._backend = backend
        self._stall_timeout = stall_timeout
        self._stops = stops
        self.seconds_between = min(_SECONDS_BETWEEN, stall_timeout)
        self._last_progress: tuple[object, ...] = ()
        self._moved = monotonic()
        self._has_told = False

    def look(self, observer: Observer, workers: JobWorkers) -> None:
        """Write what the job is doing. Raises `StalledError` if it does nothing, and that was asked for."""
        now = monotonic()
        numbers = observer.num_done, observer.num_failed, observer.num_deaths, workers.num_busy
        progress = (observer.desc, numbers, tuple(observer.counts.items()))
        if progress != self._last_progress:
            self._last_progress, self._moved, self._has_told = progress, now, False
        status = RunStatus(
            run=self._run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            backend=self._backend,
            written=round(time.time(), 3),
            job=observer.desc,
            done=observer.num_done,
            total=observer.total,
            failed=observer.num_failed,
            deaths=observer.num_deaths,
            workers=len(workers),
            busy=workers.num_busy,
            counts=observer.counts,
            seconds_without_progress=round(now - self._moved, 1),
            slowest=[_describe_task(worker, now) for worker in workers.list_longest_running(_MAX_TASKS)],
        )
        self._write(status)
        if now - self._moved >= self._stall_timeout and not self._has_told:
            self._has_told = True
            self._tell_stall(status)

    def _write(self, status: RunStatus) -> None:
        with PendingFile(self._output / STATUS, self._run_id) as file:
            file.write(msgspec.json.encode(status))
            file.commit(sync=False)

    def _tell_stall(self, status: RunStatus) -> None:
        message = f"{status.job}: no progress for {status.seconds_without_progress:.0f} s; {describe_slowest(status)}"
        if self._stops:
            raise StalledError(message, help="the same command resumes; a timeout quarantines records that hang")
        _log.warning("%s", message)


def read_status(output: Location) -> RunStatus | None:
    """Read what the run in a folder was doing last; None if it holds a finished dataset and no run."""
    try:
        return msgspec.json.decode((output / STATUS).read_bytes(), type=RunStatus)
    except FileNotFoundError:
        if (output / MANIFEST).exists():
            return None
        raise UsageError(
            f"{output} holds neither a run nor a dataset", help="name the output folder of a run"
        ) from None
    except msgspec.DecodeError as error:
        raise DamagedDatasetError(f"{output / STATUS} cannot be read: {error}") from error


def describe_slowest(status: RunStatus) -> str:
    """Describe the tasks that have been running for longest, in one line."""
    if not status.slowest:
        return "no task is running"
    tasks = [
        f"{task.task} on {task.worker}{f' of node {task.node[:_NODE_LETTERS]}' if task.node else ''} "
        f"for {task.seconds:,.0f} s"
        for task in status.slowest
    ]
    return f"running: {'; '.join(tasks)}"


def _describe_task(worker: PooledWorker, now: float) -> RunningTask:
    items = [item for _, item in worker.unfinished_items()]
    return RunningTask(
        task=", ".join(item.id for item in items if isinstance(item, Task)),
        worker=worker.handle.name,
        node=worker.handle.node or "",
        seconds=round(now - worker.busy_since, 1),
    )
