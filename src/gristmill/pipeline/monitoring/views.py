"""Views of a running job: live on a terminal, as plain lines otherwise, or in a browser.

`gristmill status` and the replay of a log of events print the same lines. A line is a list of pieces with a style each,
so that a terminal can color what a plain file shows as it is. Names of files and workers are shown without characters
that control a terminal.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gristmill.core.checks import escape_controls
from gristmill.core.quantities import format_bytes, format_count, format_duration
from gristmill.report.view.describe import measure

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from gristmill.pipeline.monitoring.run_status import EndedJob, RunStatus, WorkerStatus


_LINE_SECONDS = 10.0
_BAR_CHARACTERS = 24
_BAR_WIDTH = 64
"""The columns from which on a line has room for the whole bar; narrower ones have a shorter one, or none."""
_INDENT = "  "
_CAUSE_STYLES = {"computing": "green", "starting": "cyan", "unknown": "dim"}


class StatusView(Protocol):
    """A place where statuses are shown, one after another."""

    def show(self, status: RunStatus) -> None:
        """Show a status, which replaces the one before."""

    def close(self) -> None:
        """Show the end of the run."""


def open_view(kind: str, port: int, title: str) -> StatusView:
    """Open a view: `web`, or the terminal, which is plain lines if there is none."""
    if kind == "web":
        from gristmill.pipeline.monitoring.web_view import WebView  # noqa: PLC0415  (a server)

        return WebView(title, port)
    return TerminalView(title) if sys.stderr is not None and sys.stderr.isatty() else LineView()


class LineView:
    """A view that prints a line every ten seconds."""

    def __init__(self) -> None:
        self._printed = monotonic()

    def show(self, status: RunStatus) -> None:
        """Print the status, unless another one was printed a moment ago."""
        if monotonic() - self._printed >= _LINE_SECONDS and sys.stderr is not None:
            self._printed = monotonic()
            sys.stderr.write(f"{escape_controls(summarize_status(status))}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Do nothing: the run itself says how it ended."""


class TerminalView:
    """A live view on the terminal. Its last state stays there; the cursor, which it hides, comes back."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Live | None = None

    def show(self, status: RunStatus) -> None:
        """Draw the status over the one before."""
        if self._live is None:
            from rich.console import Console  # noqa: PLC0415
            from rich.live import Live  # noqa: PLC0415

            live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, vertical_overflow="crop")
            live.start()
            self._live = live
        size = self._live.console.size
        lines = render_status(status, self._title, width=size.width - 1, max_lines=size.height - 1)
        self._live.update(_to_rich(lines), refresh=True)

    def close(self) -> None:
        """Leave the last state on the screen, and show the cursor again."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _to_rich(lines: list[Line]) -> Text:
    from rich.text import Text  # noqa: PLC0415

    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for piece in line:
            text.append(piece.text, piece.style or None)
    return text


class Piece(NamedTuple):
    """Some characters of a line in one style."""

    text: str
    style: str = ""
    is_path: bool = False
    """If it does not fit, its beginning is left out: a path says most at its end."""


Line = list[Piece]


def render_status(status: RunStatus, title: str, *, width: int = 100, max_lines: int | None = None) -> list[Line]:
    """Render a status. With `max_lines` workers and ended jobs are left out as far as necessary, and counted."""
    host = f"run {status.run} on {status.host}, process {status.pid}, {status.backend}"
    head = [[Piece(title, "bold"), Piece(f"  {host}, {format_duration(status.run_seconds)}", "dim")]]
    job = [_render_job(status, width), _render_counts(status)]
    if status.num_workers:
        job.append(_render_workers_line(status))
    why = [] if status.is_over or not status.workers else [_render_why(status)]
    ended = [_render_ended(job) for job in status.ended]
    workers = [_render_worker(worker) for worker in status.workers]
    if max_lines is not None:
        room = max(2, max_lines - len(head) - len(job) - len(why))
        ended = _shorten(ended, max(1, room // 3), "job", keeps_last=True)
        workers = _shorten(workers, max(1, room - len(ended)), "worker", keeps_last=False)
    lines = [*head, *ended, *job, *workers, *why]
    return [_cut(line, width) for line in lines] if max_lines is not None else [_clean(line) for line in lines]


def to_text(lines: list[Line]) -> list[str]:
    """Return lines without their styles."""
    return ["".join(piece.text for piece in line).rstrip() for line in lines]


def summarize_status(status: RunStatus) -> str:
    """Summarize a status in one line, for logs."""
    share = "" if status.fraction is None else f" {status.fraction:.0%},"
    total = "" if status.total is None else f" of {status.total:,}"
    left = "" if status.seconds_left is None else f", {format_duration(status.seconds_left)} left"
    workers = f"{status.num_busy} of {format_count(status.num_workers, 'worker')} busy"
    memory = format_bytes(sum(worker.memory_bytes for worker in status.workers))
    line = f"{status.job}:{share} {status.done:,}{total} tasks, {_format_rate(status)}{left}; {workers}, {memory}"
    if status.bottleneck.cause != "unknown":
        line += f"; {status.bottleneck.text}"
    return _make_printable(line)


def _render_job(status: RunStatus, width: int) -> Line:
    num_characters = min(_BAR_CHARACTERS, max(0, width - _BAR_WIDTH + _BAR_CHARACTERS))
    total = "" if status.total is None else f" of {status.total:,}"
    pieces = [Piece(f"{_INDENT}{status.job} ", "bold cyan")]
    if status.fraction is not None:
        num_full = int(status.fraction * num_characters)
        pieces.append(Piece("━" * num_full, "cyan"))
        pieces.append(Piece("─" * (num_characters - num_full), "dim"))
        pieces.append(Piece(f"{' ' if num_characters else ''}{status.fraction:.0%} ", "bold"))
    pieces.append(Piece(f" {status.done:,}{total} tasks done, {_format_rate(status)}"))
    if status.seconds_left is not None and (status.fraction or 0) < 1:
        pieces.append(Piece(f", {format_duration(status.seconds_left)} left", "bold"))
    return pieces


def _format_rate(status: RunStatus) -> str:
    return f"{format_bytes(int(status.bytes_per_second))}/s, {status.records_per_second:,.0f} records/s"


def _render_counts(status: RunStatus) -> Line:
    counts = [f"{amount:,} {name}" for name, amount in status.counts.items() if name != "bytes" and ":" not in name]
    if status.num_bytes:
        done = format_bytes(status.counts.get("bytes", 0))
        counts.append(f"{done} of {format_bytes(status.num_bytes)}")
    line = [Piece(f"{_INDENT}{', '.join(counts) or 'nothing counted yet'}, {status.failed:,} failed")]
    if status.seconds_without_progress >= 10:
        line.append(Piece(f", no progress for {status.seconds_without_progress:,.0f} s", "bold yellow"))
    return line


def _render_workers_line(status: RunStatus) -> Line:
    died = f", {status.deaths:,} died" if status.deaths else ""
    memory = ""
    if status.memory_limit:
        memory = f"; {format_bytes(status.memory_available)} of {format_bytes(status.memory_limit)} memory free"
    workers = f"{format_count(status.num_workers, 'worker')} ({status.backend}), {status.num_busy:,} busy{died}"
    return [Piece(f"{_INDENT}{workers}{memory}")]


def _render_worker(worker: WorkerStatus) -> Line:
    share = "    -" if worker.cpu_share is None else f"{worker.cpu_share:5.0%}"
    memory = format_bytes(worker.memory_bytes) if worker.memory_bytes else "-"
    style = {"busy": "green", "idle": "yellow", "starting": "cyan"}[worker.state]
    pieces = [Piece(f"{_INDENT * 2}{worker.name:<16} "), Piece(f"{worker.state:<8}", style)]
    pieces.append(Piece(f" cpu {share}  mem {memory:>9}"))
    if worker.task:
        pieces.append(Piece(f"  {worker.seconds:,.0f} s: "))
        pieces.append(Piece(worker.task, is_path=True))
        pieces += [Piece(f", {worker.records:,} records")] if worker.records else []
    if worker.node:
        pieces.append(Piece(f" (node {worker.node[:8]})", "dim"))
    return pieces


def _render_ended(job: EndedJob) -> Line:
    records = f", {job.counts['records']:,} records" if "records" in job.counts else ""
    text = f"{_INDENT}{job.name}: done in {format_duration(job.seconds)}, {format_count(job.tasks, 'task')}{records}"
    return [Piece(text, "dim")]


def _render_why(status: RunStatus) -> Line:
    style = _CAUSE_STYLES.get(status.bottleneck.cause, "bold yellow")
    return [Piece(f"{_INDENT}why this speed: ", "bold"), Piece(status.bottleneck.text, style)]


def _shorten(lines: list[Line], max_lines: int, word: str, *, keeps_last: bool) -> list[Line]:
    if len(lines) <= max_lines:
        return lines
    num_kept = max_lines - 1
    note = [Piece(f"{_INDENT * 2}… {format_count(len(lines) - num_kept, word)} more", "dim")]
    return [note, *lines[len(lines) - num_kept :]] if keeps_last else [*lines[:num_kept], note]


def _cut(line: Line, width: int) -> Line:
    """Cut a line to the columns of the terminal."""
    pieces: Line = []
    room = width
    for piece in _clean(line):
        num_columns = sum(map(measure, piece.text))
        if num_columns > room:
            text = piece.text
            while text and sum(map(measure, text)) >= max(1, room):
                text = text[1:] if piece.is_path else text[:-1]
            shown = f"…{text}" if piece.is_path else f"{text}…"
            return [*pieces, Piece(shown, piece.style)] if room > 0 else pieces
        pieces.append(piece)
        room -= num_columns
    return pieces


def _clean(line: Line) -> Line:
    return [piece._replace(text=_make_printable(piece.text)) for piece in line]


def _make_printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
