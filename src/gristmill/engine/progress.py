"""Progress for a person: bars on a terminal, otherwise a plain line now and then.

Nothing is shown, and rich is not imported, before a job has run for half a second.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

from gristmill.engine import resources

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from gristmill.engine.crew import Crew
    from gristmill.engine.observer import Display, Observer

_QUIET_SECONDS = 0.5


def choose(*, progress: bool | None, monitor: bool) -> Display | None:
    """None: bars on a terminal, lines elsewhere. True: always bars."""
    if progress is False or sys.stderr is None:
        return None
    if progress or sys.stderr.isatty():
        return Bars(monitor=monitor)
    return Lines(monitor=monitor)


class Lines:
    """One line every ten seconds."""

    seconds_between = 10.0

    def __init__(self, *, monitor: bool) -> None:
        self._monitor = Monitor() if monitor else None

    def show(self, observer: Observer, crew: Crew) -> None:
        parts = [summary(observer)]
        if self._monitor is not None:
            parts += self._monitor.look(crew)
        _say("; ".join(parts))

    def close(self, observer: Observer) -> None:
        if observer.seconds >= self.seconds_between:
            _say(f"{summary(observer)}; ended after {duration(observer.seconds)}")


class Bars:
    """A live bar, with one more line for each worker when they are monitored."""

    seconds_between = 0.2

    def __init__(self, *, monitor: bool) -> None:
        self._monitor = Monitor() if monitor else None
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._workers: dict[int, TaskID] = {}

    def show(self, observer: Observer, crew: Crew) -> None:
        if observer.seconds < _QUIET_SECONDS:
            return
        if self._progress is None or self._bar is None:
            self._progress = _start_rich()
            self._bar = self._progress.add_task(observer.desc, total=observer.total, details="")
        self._progress.update(self._bar, completed=observer.num_done, details=_details(observer), refresh=True)
        if self._monitor is not None:
            self._show_workers(self._progress, self._monitor.look(crew))

    def _show_workers(self, progress: Progress, lines: list[str]) -> None:
        for row, line in enumerate(lines):
            if row not in self._workers:
                self._workers[row] = progress.add_task("", total=None, details="")
            progress.update(self._workers[row], details=line, visible=True)
        for row in range(len(lines), len(self._workers)):
            progress.update(self._workers[row], visible=False)

    def close(self, observer: Observer) -> None:
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=observer.num_done, details=_details(observer))
            self._progress.stop()
            self._progress = None


class Monitor:
    """CPU and memory of each worker since the last look."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}

    def look(self, crew: Crew) -> list[str]:
        lines = []
        for member in crew:
            pid = member.worker.pid
            if pid is None:
                continue
            now, used = monotonic(), resources.process_cpu_seconds(pid)
            then, used_then = self._seen.get(pid, (now, used))
            self._seen[pid] = (now, used)
            share = (used - used_then) / (now - then) if now > then else 0.0
            size = resources.process_bytes(pid) / (1 << 20)
            state = "busy" if member.chunks else "idle" if member.ready else "starting"
            lines.append(f"{member.worker.name} {state} cpu {share:4.0%} mem {size:,.0f} MiB")
        return lines


def summary(observer: Observer) -> str:
    """`words: 1,200/10,000 (12%), 120/s, 1 min 13 s left, 3 failed`."""
    done = f"{observer.num_done:,}"
    if observer.total:
        done = f"{done}/{observer.total:,} ({observer.num_done / observer.total:.0%})"
    return ", ".join([f"{observer.desc}: {done}", _details(observer)])


def _details(observer: Observer) -> str:
    rate = observer.num_done / observer.seconds if observer.seconds else 0.0
    parts = [f"{rate:,.1f}/s" if rate < 100 else f"{rate:,.0f}/s"]
    if observer.total is not None and rate and observer.num_done < observer.total:
        parts.append(f"{duration((observer.total - observer.num_done) / rate)} left")
    parts += [f"{amount:,} {name}" for name, amount in sorted(observer.counts.items())]
    if observer.num_failed:
        parts.append(f"{observer.num_failed:,} failed")
    if observer.num_deaths:
        parts.append(f"{observer.num_deaths:,} workers replaced")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time in at most two units.

    >>> duration(4.2), duration(73), duration(7500)
    ('4 s', '1 min 13 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _start_rich() -> Progress:
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[details]}", markup=False),
    )
    bars = progress.Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    bars.start()
    return bars
