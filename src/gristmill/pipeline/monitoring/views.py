"""Views of a running job: live on a terminal, as plain lines elsewhere, or in a browser."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from gristmill.pipeline.monitoring.text_view import render_status, summarize_status

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from gristmill.pipeline.monitoring.run_status import RunStatus
    from gristmill.pipeline.monitoring.text_view import Line

_LINE_SECONDS = 10.0


class StatusView(Protocol):
    """A place where statuses are shown, one after another."""

    def show(self, status: RunStatus) -> None:
        """Show a status in place of the one before."""

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
            sys.stderr.write(f"{summarize_status(status)}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Do nothing: the run itself says how it ended."""


class TerminalView:
    """A live view on the terminal. Its last state stays there; the cursor, which it hides, comes back."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Live | None = None

    def show(self, status: RunStatus) -> None:
        """Draw the status in place of the one before."""
        if self._live is None:
            self._live = _start_live()
        size = self._live.console.size
        lines = render_status(status, self._title, width=size.width - 1, max_lines=size.height - 1)
        self._live.update(_to_rich(lines), refresh=True)

    def close(self) -> None:
        """Leave the last state on the screen, and show the cursor again."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _start_live() -> Live:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, vertical_overflow="crop")
    live.start()
    return live


def _to_rich(lines: list[Line]) -> Text:
    from rich.text import Text  # noqa: PLC0415

    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for piece in line:
            text.append(piece.text, piece.style or None)
    return text
