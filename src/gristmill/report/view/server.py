"""The viewer's server, its page as one saved file, and the viewer in a notebook.

Nothing but rows of what was opened can be asked for. Pictures are sent with the content type that their first bytes
say, and with a policy under which nothing in them could run. A saved page needs no server and no network.
"""

from __future__ import annotations

import base64
from itertools import islice
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import GristmillError
from gristmill.core.quantities import format_count
from gristmill.report.local_server import LocalServer
from gristmill.report.markup import Markup, element, encode_plain, join
from gristmill.report.page import make_document, make_theme_button
from gristmill.report.view.describe import find_picture_type
from gristmill.report.view.page_requests import Requests, describe_safely
from gristmill.report.view.rows import count_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.report.local_server import Reply
    from gristmill.report.view.rows import Rows

_MAX_PICTURES = 64 << 20


class Viewer(LocalServer):
    """A server of some collections of rows."""

    def __init__(self, collections: dict[str, Rows], port: int = 0, command: str = "gristmill view") -> None:
        """Serve on a port; `command` is what starts the server again."""
        super().__init__(port)
        self.collections = collections
        self._command = command
        self.requests = Requests(collections)

    def answer(self, name: str, words: dict[str, str], reply: Reply) -> None:  # noqa: ARG002  (filters come several times)
        """Answer with the page, or with what it asks for."""
        requests = self.requests
        if not name:
            reply.send_page(self.make_page())
        elif name == "info":
            reply.send_json({"command": self._command, "collections": requests.describe()})
        elif name == "rows":
            reply.send_json(requests.read_rows(reply.words))
        elif name == "record":
            reply.send_json(requests.read_record(reply.words))
        elif name == "column":
            reply.send_json(requests.describe_column(reply.words))
        elif name == "mixture":
            reply.send_json(requests.describe_mixture(reply.words))
        elif name == "document":
            reply.send_json(requests.find_document(reply.words))
        elif name == "picture":
            content = requests.read_picture(reply.words)
            kind = find_picture_type(content) or "application/octet-stream"
            reply.send_body(content, kind, headers=(("Content-Security-Policy", "default-src 'none'; sandbox"),))
        elif name == "save":
            page = make_saved_page(*requests.list_chosen(reply.words)).encode(errors="backslashreplace")
            reply.send_body(page, "text/html", headers=(("Content-Disposition", 'attachment; filename="rows.html"'),))
        elif name == "search":
            self._stream_hits(reply)
        else:
            reply.send_not_found()

    def make_page(self) -> str:
        """Make the page, which asks for everything else."""
        title = next(iter(self.collections.values())).title
        body = join(
            element(
                "header",
                element("div", element("div", element("h1", title), make_theme_button(), class_="row"), id="head"),
                class_="top",
            ),
            element(
                "main",
                element("div", id="controls"),
                element(
                    "div",
                    element("div", id="rows"),
                    element("aside", id="panel", aria_label="The chosen row", tabindex="-1", hidden=True),
                    id="work",
                ),
                id="view",
            ),
        )
        scripts = ("rows.js", "view_controls.js", "view.js")
        return make_document(
            f"{title} · Gristmill", body, *scripts, style="view.css", connects="'self'", images="'self' data:"
        )

    def _stream_hits(self, reply: Reply) -> None:
        """Send each hit as a line of JSON, as soon as it is found. An error after the first one is a line, too."""
        hits = self.requests.search(reply.words)  # a wrong expression is told before anything is sent
        reply.send_head("application/x-ndjson", None)
        try:
            for hit in hits:
                reply.send_line(hit)
            reply.send_line({"done": True})
        except GristmillError as error:
            reply.send_line({"error": error.message})


def make_saved_page(rows: Rows, numbers: Iterable[int]) -> str:
    """Make a page of some rows."""
    described = [_describe(rows, number) for number in numbers]
    # Inside a script element only "<" could end it or begin a comment.
    data = encode_plain(described).decode().replace("<", "\\u003c")
    title = f"{rows.title}: {format_count(len(described), 'row')}"
    warning = f"This page holds {format_count(len(described), 'record')} of the data. Mind who gets it."
    body = join(
        element(
            "header",
            element(
                "div", element("div", element("h1", title), make_theme_button(), class_="row"), element("p", warning)
            ),
            class_="top",
        ),
        element("main", element("div", id="rows"), id="view"),
        Markup(f'<script type="application/json" id="data">{data}</script>'),
    )
    return make_document(f"{title} · Gristmill", body, "rows.js", "saved.js")


def _describe(rows: Rows, number: int) -> dict[str, Any]:
    described = describe_safely(rows, number)
    if described.get("pictures"):
        described["pictures"] = [
            {**picture, "data": f"data:{find_picture_type(content)};base64,{base64.b64encode(content).decode()}"}
            if len(content) <= _MAX_PICTURES
            else picture
            for picture, content in zip(described["pictures"], rows.read_pictures(number), strict=True)
        ]
    return described


class View:
    """A viewer that serves in a thread. In a notebook it shows its first rows."""

    def __init__(self, collections: dict[str, Rows], rows: int, port: int) -> None:
        self._collections = collections
        self._num_rows = rows
        self._viewer = Viewer(collections, port)
        self._viewer.start()

    @property
    def url(self) -> str:
        """The address of the page, on this machine only."""
        return self._viewer.url

    def close(self) -> None:
        """End the server of this view."""
        self._viewer.close()

    def __repr__(self) -> str:
        return f"View({', '.join(self._collections)}; {self.url})"

    def _repr_html_(self) -> str:
        # The rows are in the cell: a notebook is often on another machine than its kernel, which has the server.
        rows = next(iter(self._collections.values()))
        page = make_saved_page(rows, islice(range(count_rows(rows)), self._num_rows))
        frame = element("iframe", srcdoc=page, sandbox="allow-scripts", style="width:100%;height:32rem;border:0")
        return f"{element('p', element('a', self.url, href=self.url, target='_blank', rel='noreferrer'))}{frame}"
