"""The viewer's server. Nothing but rows of what was opened can be asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.report.local_server import LocalServer
from gristmill.report.markup import element, join
from gristmill.report.page import make_document, make_theme_button
from gristmill.report.view.rows import count_rows, search_rows

if TYPE_CHECKING:
    from gristmill.report.local_server import Reply
    from gristmill.report.view.rows import Rows

_MAX_ROWS = 100
_MAX_HITS = 200


class Viewer(LocalServer):
    """A server of some collections of rows."""

    def __init__(self, collections: dict[str, Rows], port: int = 0) -> None:
        super().__init__(port)
        self.collections = collections
        self._lock = threading.Lock()  # readers keep state, and two browsers may ask at once

    def answer(self, name: str, words: dict[str, str], reply: Reply) -> None:
        """Answer with the page, or with what it asks for."""
        if not name:
            reply.send_page(self.make_page())
        elif name == "info":
            reply.send_json(self.describe())
        elif name == "rows":
            count = int(words.get("count", "10"))
            reply.send_json(self.read_rows(words["name"], int(words.get("start", "0")), count))
        elif name == "search":
            self._stream_hits(words, reply)
        else:
            reply.send_not_found()

    def describe(self) -> list[dict[str, Any]]:
        """Describe all collections for the page."""
        return [
            {
                "name": name,
                "title": rows.title,
                "kind": rows.kind,
                "rows": count_rows(rows),
                "lanes": msgspec.to_builtins(rows.lanes),
            }
            for name, rows in self.collections.items()
        ]

    def read_rows(self, name: str, start: int, count: int) -> list[dict[str, Any]]:
        """Describe some rows of a collection."""
        rows = self.collections[name]
        end = min(start + min(count, _MAX_ROWS), count_rows(rows))
        with self._lock:
            return [rows.describe_row(number) for number in range(max(0, start), end)]

    def make_page(self) -> str:
        """Make the page, which asks for everything else."""
        title = next(iter(self.collections.values())).title
        body = join(
            element(
                "header",
                element("div", element("div", element("h1", title), make_theme_button(), class_="row"), id="head"),
                class_="top",
            ),
            element("main", element("div", id="controls"), element("div", id="rows", aria_live="polite"), id="view"),
        )
        return make_document(f"{title} · Gristmill", body, "view.js", connects="'self'")

    def _stream_hits(self, words: dict[str, str], reply: Reply) -> None:
        """Send each hit as a line of JSON, as soon as it is found."""
        rows = self.collections[words["name"]]
        start, end = int(words.get("start", "0")), int(words.get("end", str(count_rows(rows))))
        hits = search_rows(
            rows, words["query"], is_regex=words.get("regex") == "1", start=start, end=min(end, count_rows(rows))
        )
        first = next(hits, None)  # a wrong expression is told before anything is sent
        reply.send_head("application/x-ndjson", None)
        num_hits = 0
        while first is not None and num_hits < _MAX_HITS:
            num_hits += not isinstance(first, int)
            line = {"searched": first} if isinstance(first, int) else first
            reply.wfile.write(msgspec.json.encode(line) + b"\n")
            reply.wfile.flush()
            with self._lock:
                first = next(hits, None)
