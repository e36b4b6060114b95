"""A run in the browser: one page that asks for the status every second, and `/metrics` for Prometheus."""

from __future__ import annotations

import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import structs

from gristmill.pipeline.monitoring.metrics import CONTENT_TYPE, format_metrics
from gristmill.report.local_server import LocalServer
from gristmill.report.markup import element, join
from gristmill.report.page import make_document, make_theme_button

if TYPE_CHECKING:
    from gristmill.pipeline.monitoring.run_status import RunStatus
    from gristmill.report.local_server import Reply

_LAST_LOOK_SECONDS = 2.5
"""How long the end of a run is shown to a page that is open: it asks every second."""


class WebView(LocalServer):
    """A view that serves the last status to pages on this machine."""

    def __init__(self, title: str, port: int = 0) -> None:
        super().__init__(port)
        self._title = title
        self._status: RunStatus | None = None
        self._asked = float("-inf")
        self._has_shown_end = threading.Event()
        self.start()
        if sys.stderr is not None:
            sys.stderr.write(f"monitor: {self.url} (metrics: {self.url}metrics)\n")
            sys.stderr.flush()

    def show(self, status: RunStatus) -> None:
        """Serve another status from now on."""
        self._status = status

    def close(self) -> None:
        """Show the end of the run to a page that is open, then stop serving."""
        if self._status is not None:
            self._status = structs.replace(self._status, is_over=True)
            if monotonic() - self._asked < _LAST_LOOK_SECONDS:
                self._has_shown_end.wait(_LAST_LOOK_SECONDS)
        super().close()

    def answer(self, name: str, words: dict[str, str], reply: Reply) -> None:  # noqa: ARG002  (no request has words)
        """Answer with the page, the status as JSON, or metrics."""
        status = self._status
        if not name:
            reply.send_page(self._make_page())
        elif name == "status":
            self._asked = monotonic()
            fraction = None if status is None else status.fraction
            reply.send_json({"status": status, "fraction": fraction})
            if status is not None and status.is_over:
                self._has_shown_end.set()
        elif name == "metrics":
            text = "" if status is None else format_metrics(status)
            reply.send_body(text.encode(), CONTENT_TYPE)
        else:
            reply.send_not_found()

    def _make_page(self) -> str:
        """Make the page, which asks for everything else."""
        heading = element("div", element("h1", self._title), make_theme_button(), class_="row")
        header = element("header", element("div", heading, element("p", id="run", class_="quiet")), class_="top")
        tables = [
            element("section", element("h2", name), element("div", id=identifier), id=f"{identifier}-section")
            for identifier, name in (("workers", "Workers"), ("ended", "Jobs that have ended"))
        ]
        main = element(
            "main",
            element("p", id="job", role="status"),
            element("progress", id="progress", max=1, value=0),
            element("p", "Waiting for the first task.", id="why"),
            element("dl", id="cards", class_="cards"),
            element("figure", id="rate", class_="chart"),
            *tables,
        )
        return make_document(f"{self._title} · Gristmill", join(header, main), "monitor.js", connects="'self'")
