"""What the scheduler reports while it runs: numbers for the progress display, and events for the log.

The log is the history of a job as JSON lines (`EventLog`), for scripts and for later analysis.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.core.errors import UsageError
from gristmill.engine.failure_report import FinalFailure
from gristmill.engine.machine import read_process_use
from gristmill.storage.line_log import LineLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.engine.job_workers import JobWorkers

_MAX_LINE_BYTES = 1 << 20

_log = logging.getLogger("gristmill")


class Display(Protocol):
    """A display that shows a running job to a person."""

    seconds_between: float

    def show(self, observer: Observer, workers: JobWorkers) -> None:
        """Show the job as it is now. Called every `seconds_between` seconds."""

    def close(self, observer: Observer) -> None:
        """Show the end of the job."""


class RunWatch(Protocol):
    """Looks at a running job from time to time. What it raises ends the job."""

    seconds_between: float

    def look(self, observer: Observer, workers: JobWorkers) -> None:
        """Look at the job as it is now. Called every `seconds_between` seconds."""

    def end_job(self, observer: Observer) -> None:
        """Note that the job has ended."""


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """The use of one worker: its CPU time and largest memory since its start, and its items of one job."""

    name: str
    pid: int
    items: int
    cpu_seconds: float
    peak_bytes: int
    """As is the CPU time, zero for a worker on another machine that has not been measured."""
    node: str = ""
    """The id of its machine; empty: this one."""
    host: str = ""
    """The name of that machine."""

    @property
    def key(self) -> int | str:
        """What distinguishes its process from all others."""
        return self.name if self.node else self.pid


class Observer:
    """Keeps the counts of a job and reports its events to the display, the log and the user."""

    def __init__(
        self,
        desc: str,
        total: int | None,
        display: Display | None,
        events: EventLog | None,
        *,
        num_bytes: int = 0,
        watch: RunWatch | None = None,
    ) -> None:
        self.desc = desc.encode(errors="backslashreplace").decode()  # file names need not be printable
        self.total = total
        self.num_bytes = num_bytes
        """The expected final value of the counter `bytes`; 0 if it is not known."""
        self.num_done = 0
        self.num_failed = 0
        self.num_deaths = 0
        self.reduction = ""
        """Why the job continues with fewer workers than it was to have, if it does."""
        self.counts: dict[str, int] = {}
        self.workers: list[WorkerUse] = []
        """The workers that were there at the end of the job; workers without a process of their own are one."""
        self._started = self._last_shown = monotonic()
        self._first_ready: float | None = None
        self._display = display
        self._events = events
        self._watch = watch
        self._last_look = self._started

    def __enter__(self) -> None:
        self._started = self._last_shown = monotonic()
        self.report_event("job_started", job=self.desc, total=self.total)

    def __exit__(self, *exc_info: object) -> None:
        if self._display is not None:
            with contextlib.suppress(OSError, ValueError):
                self._display.close(self)
        if self._watch is not None:
            self._watch.end_job(self)
        self.report_event(
            "job_ended",
            done=self.num_done,
            failed=self.num_failed,
            deaths=self.num_deaths,
            seconds=round(self.seconds, 3),
            counts=self.counts,
        )
        if self._events is not None:
            self._events.close()

    @property
    def tick_seconds(self) -> float:
        """Seconds between two calls of `tick` that suit the display."""
        return self._display.seconds_between if self._display is not None else float("inf")

    @property
    def seconds(self) -> float:
        """Seconds since the job started."""
        return monotonic() - self._started

    @property
    def seconds_since_ready(self) -> float:
        """Seconds since the first worker was ready; 0 if none ever was."""
        return 0.0 if self._first_ready is None else monotonic() - self._first_ready

    @property
    def fraction(self) -> float | None:
        """The fraction that is done: by bytes, which also move inside an item, else by items. None if not known."""
        if self.num_bytes:
            return min(self.counts.get("bytes", 0) / self.num_bytes, 1.0)
        return self.num_done / self.total if self.total else None

    def advance(self, num_items: int) -> None:
        """Count items that have a result."""
        self.num_done += num_items

    def end_item(self, value: Any) -> None:
        """Count one item and report it if it failed."""
        self.num_done += 1
        if isinstance(value, FinalFailure):
            self.num_failed += 1
            failure = value.failure
            self.report_event(
                "item_failed",
                item=failure.index,
                kind=failure.kind,
                error=failure.error_type,
                message=failure.message,
                signal=failure.signal,
                attempts=failure.attempts,
            )

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the job's counters."""
        for name, amount in counts.items():
            self.counts[name] = self.counts.get(name, 0) + amount

    def measure_workers(self, workers: JobWorkers) -> None:
        """Note what the workers have used. Called before they are given back."""
        num_items: dict[tuple[str, int], int] = {}
        for worker in workers:
            handle = worker.handle
            if handle.node is not None:  # on another machine, which has told what it uses while it was busy
                use = handle.remote_use
                used = (0.0, 0) if use is None else (use.cpu_seconds, use.peak_bytes)
                self.workers.append(WorkerUse(handle.name, 0, worker.num_items, *used, handle.node, handle.host))
                continue
            key = ("this process", os.getpid()) if handle.pid is None else (handle.name, handle.pid)
            num_items[key] = num_items.get(key, 0) + worker.num_items
        for (name, pid), items in num_items.items():
            self.workers.append(WorkerUse(name, pid, items, *read_process_use(pid)))

    def report_event(self, event: str, **fields: object) -> None:
        """Write an event to the log; warn if it concerns the user."""
        if event == "worker_ready" and self._first_ready is None:
            self._first_ready = monotonic()
        if event == "worker_died":
            self.num_deaths += 1
            _log.warning("%s: %s %s", self.desc, fields["worker"], fields["cause"])
        elif event == "setup_failed":
            _log.warning("%s: %s could not be set up: %s", self.desc, fields["worker"], fields["error"])
        elif event == "workers_reduced":
            self.reduction = str(fields["reason"])
            _log.warning("%s: continuing with %s workers: %s", self.desc, fields["workers"], fields["reason"])
        if self._events is not None:
            self._events.write(event, **fields)

    def tick(self, workers: JobWorkers) -> None:
        """Update the display and look after the job, if the time for it has come."""
        if self._watch is not None and monotonic() - self._last_look >= self._watch.seconds_between:
            self._last_look = monotonic()
            self._watch.look(self, workers)
        if self._display is not None and monotonic() - self._last_shown >= self._display.seconds_between:
            self._last_shown = monotonic()
            try:
                self._display.show(self, workers)
            except (OSError, ValueError):  # the terminal is gone or the file is closed; the job continues
                self._display = None


class EventLog:
    """A log with one JSON object a line for each start and death of a worker, each retry, each failure, and the end.

    >>> import tempfile, pathlib, json
    >>> import gristmill as gm
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "events.jsonl")
    >>> gm.parallel_map(abs, [-1, 2], backend="serial", progress=gm.EventLog(path))
    [1, 2]
    >>> [json.loads(line)["event"] for line in path.read_text().splitlines()]
    ['job_started', 'worker_started', 'worker_ready', 'job_ended']
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._log: LineLog | None = None

    def write(self, event: str, **fields: object) -> None:
        """Append one event. The file is opened at the first one."""
        if self._log is None:
            _refuse_other_file(Path(self.path))
            self._log = LineLog(self.path)
        self._log.append({"time": round(time.time(), 3), "event": event, **fields})

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _refuse_other_file(path: Path) -> None:
    """Raise an error if the file holds anything but JSON lines: lines of events would damage it."""
    if not path.is_file():  # nothing yet, a pipe, a terminal
        return
    with path.open("rb") as file:
        first_line = file.readline(_MAX_LINE_BYTES)
    try:
        is_log = not first_line or isinstance(json.loads(first_line), dict)
    except ValueError:
        is_log = False
    if not is_log:
        raise UsageError(f"{path} is not a log of events", help="choose another path: nothing was written")
