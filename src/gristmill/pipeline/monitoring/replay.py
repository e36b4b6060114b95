"""A run again, from its log of events: each event changes the status, which is shown when its time comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from gristmill.core.errors import UsageError
from gristmill.pipeline.monitoring.run_status import EndedJob, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
            except msgspec.DecodeError as error:
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
