"""Progress for a person: bars on a terminal, otherwise a plain line every ten seconds.

Nothing is shown, and rich is not imported, before a job has run for half a second. `Activity` is for work without a
known amount: it names what is being done.
"""

from __future__ import annotations

import shutil
import sys
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING

from gristmill.core.checks import escape_controls
from gristmill.core.quantities import format_bytes, format_duration
from gristmill.engine.machine import read_process_bytes, read_process_cpu_seconds
from gristmill.engine.worker.pickling import DeferredInterrupt

if TYPE_CHECKING:
    from typing import Self

    from rich.progress import Progress, TaskID

    from gristmill.engine.job_workers import JobWorkers
    from gristmill.engine.observer import Display, Observer


_QUIET_SECONDS = 0.5
_RATE_CELLS, _LEFT_CELLS = 12, 15
"""Room for `123,456.7/s` or `999.9 MB/s`, and for `59 min 59 s left`."""
_ERASE = "\r\x1b[K"


def choose_display(*, progress: bool | None, monitor: bool) -> Display | None:
    """Choose the display. `progress` None: bars on a terminal, lines elsewhere. True: always bars."""
    if progress is False or sys.stderr is None:
        return None
    if progress or sys.stderr.isatty():
        return ProgressBars(monitor=monitor)
    return ProgressLines(monitor=monitor)


class Activity:
    """The current activity in one line: on a terminal each replaces the one before, elsewhere one is printed at times.

    >>> with Activity(shows=False) as activity:
    ...     activity.show("planning: reading a sample")
    """

    def __init__(self, *, shows: bool = True, seconds_between: float = 10.0) -> None:
        """`seconds_between` is the time between two lines where there is no terminal."""
        self._seconds_between = seconds_between
        self._shows = shows and sys.stderr is not None
        self._is_terminal = self._shows and sys.stderr.isatty()
        self._message = self._printed = ""
        self._next_line = 0.0
        # A line on a terminal is erased at the end, so it need not wait.
        self._timer = Timer(0.0 if self._is_terminal else _QUIET_SECONDS, self._begin)
        self._timer.daemon = True
        self._has_begun = False

    def __enter__(self) -> Self:
        if self._shows:
            self._timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()  # it may be printing
        if self._printed and self._is_terminal:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()

    def show(self, message: str) -> None:
        """Show the activity that begins now."""
        self._message = escape_controls(message)
        if self._has_begun:
            self._print()

    def _begin(self) -> None:
        """Show every message from now on: half a second has passed."""
        self._has_begun = True
        self._print()

    def _print(self) -> None:
        now = monotonic()
        if not self._message or self._message == self._printed or (not self._is_terminal and now < self._next_line):
            return
        self._next_line = now + self._seconds_between
        self._printed = self._message
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{_ERASE}{self._message[:width]}")
            sys.stderr.flush()
        else:
            _print_line(self._message)


class ProgressLines:
    """A display that prints one line every ten seconds."""

    seconds_between = 10.0

    def __init__(self, *, monitor: bool) -> None:
        self._monitor = WorkerMonitor() if monitor else None

    def show(self, observer: Observer, workers: JobWorkers) -> None:
        """Print the line of a job."""
        texts = [summarize(observer)]
        if self._monitor is not None:
            texts += self._monitor.describe_workers(workers)
        _print_line("; ".join(texts))

    def close(self, observer: Observer) -> None:
        """Print the last line, unless the job was too short for any other."""
        if observer.seconds >= self.seconds_between:
            _print_line(f"{summarize(observer)}; ended after {format_duration(observer.seconds)}")


class ProgressBars:
    """A live bar, with one more line for each worker when they are monitored."""

    seconds_between = 0.2

    def __init__(self, *, monitor: bool) -> None:
        self._monitor = WorkerMonitor() if monitor else None
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._workers: dict[int, TaskID] = {}

    def show(self, observer: Observer, workers: JobWorkers) -> None:
        """Update the bar of a job."""
        if observer.seconds < _QUIET_SECONDS:
            return
        if self._progress is None or self._bar is None:
            self._progress = _start_rich()
            total = None if observer.fraction is None else 1.0
            self._bar = self._progress.add_task(observer.desc, total=total, done="", details="")
        self._update(self._progress, self._bar, observer, refresh=True)
        if self._monitor is not None:
            self._show_workers(self._progress, self._monitor.describe_workers(workers))

    @staticmethod
    def _update(progress: Progress, bar: TaskID, observer: Observer, *, refresh: bool) -> None:
        done = _format_done(observer)
        fixed = len(f"{observer.desc}  100% {done} ")  # the characters of the line before its details
        progress.update(
            bar,
            completed=observer.fraction or 0.0,
            done=done,
            details=_format_details(observer, progress.console.width - fixed),
            refresh=refresh,
        )

    def _show_workers(self, progress: Progress, lines: list[str]) -> None:
        for row, line in enumerate(lines):
            if row not in self._workers:
                self._workers[row] = progress.add_task("", total=None, done="", details="")
            progress.update(self._workers[row], details=line, visible=True)
        for row in range(len(lines), len(self._workers)):
            progress.update(self._workers[row], visible=False)

    def close(self, observer: Observer) -> None:
        """Leave the bar in its final state."""
        if self._progress is not None and self._bar is not None:
            self._update(self._progress, self._bar, observer, refresh=False)
            self._progress.stop()
            self._progress = None


class WorkerMonitor:
    """Measures CPU and memory of each worker between two calls."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, float]] = {}
        """By process: the time of the last call, and the CPU seconds used until then."""

    def describe_workers(self, workers: JobWorkers) -> list[str]:
        """Return one line for each worker process."""
        lines = []
        for worker in workers:
            pid = worker.handle.pid
            if pid is None:
                continue
            now, used = monotonic(), read_process_cpu_seconds(pid)
            last_time, last_used = self._last.get(pid, (now, used))
            self._last[pid] = (now, used)
            share = (used - last_used) / (now - last_time) if now > last_time else 0.0
            size = read_process_bytes(pid) / (1 << 20)
            state = "busy" if worker.chunks else "idle" if worker.is_ready else "starting"
            lines.append(f"{worker.handle.name} {state} cpu {share:4.0%} mem {size:,.0f} MiB")
        return lines


def summarize(observer: Observer) -> str:
    """Summarize a job in one line: `words: 12%, 1,200/10,000, 120/s, 1 min 13 s left, 3 failed`."""
    share = [] if observer.fraction is None else [f"{observer.fraction:.0%}"]
    return f"{observer.desc}: {', '.join([*share, _format_done(observer), _format_details(observer, None)])}"


def _format_done(observer: Observer) -> str:
    """Format how much is done: of the bytes where they are known (`189/309 MB`), else of the items."""
    if observer.num_bytes:
        total, unit = format_bytes(observer.num_bytes).split(" ")
        scale = float(total.replace(",", "")) / observer.num_bytes
        done = min(observer.counts.get("bytes", 0), observer.num_bytes) * scale
        return f"{done:,.1f}/{total} {unit}" if unit != "bytes" else f"{done:,.0f}/{total} {unit}"
    return f"{observer.num_done:,}/{observer.total:,}" if observer.total else f"{observer.num_done:,}"


def _format_details(observer: Observer, max_characters: int | None) -> str:
    """Format speed and counts. In a narrow terminal the last ones are omitted, so that nothing is truncated."""
    if observer.num_bytes and not observer.counts:
        return "starting workers"
    seconds, fraction = observer.seconds_since_ready or observer.seconds, observer.fraction
    num_counted = observer.counts.get("bytes", 0) if observer.num_bytes else observer.num_done
    rate = num_counted / seconds if seconds else 0.0
    if observer.num_bytes:
        texts = [f"{format_bytes(int(rate))}/s"]
    else:
        texts = [f"{rate:,.1f}/s" if rate < 100 else f"{rate:,.0f}/s"]
    if fraction and fraction < 1:
        texts.append(f"{format_duration(seconds * (1 - fraction) / fraction)} left")
    if max_characters is not None:  # on a terminal the columns stay where they are
        texts = [f"{text:>{size}}" for text, size in zip(texts, (_RATE_CELLS, _LEFT_CELLS), strict=False)]
        if sum(map(len, texts)) + 2 > max_characters:
            texts = [text.strip() for text in texts]
    if observer.num_failed:
        texts.append(f"{observer.num_failed:,} failed")
    if observer.num_deaths:
        texts.append(f"{observer.num_deaths:,} worker{'s' if observer.num_deaths > 1 else ''} replaced")
    texts += [
        f"{amount:,} {name}" for name, amount in sorted(observer.counts.items()) if name != "bytes" and ":" not in name
    ]
    while max_characters is not None and len(texts) > 1 and len(", ".join(texts)) > max_characters:
        texts.pop()
    return ", ".join(texts)


def _print_line(line: str) -> None:
    sys.stderr.write(escape_controls(line) + "\n")
    sys.stderr.flush()


def _start_rich() -> Progress:
    with DeferredInterrupt():
        from rich import progress  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[done]}", markup=False),
        progress.TextColumn("{task.fields[details]}", markup=False),
    )
    bars = progress.Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    bars.start()
    return bars
