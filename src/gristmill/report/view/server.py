"""The viewer's server. Nothing but rows of what was opened can be asked for.

Pictures are sent with the content type that their first bytes say, and with a policy under which nothing in them could
run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import GristmillError
from gristmill.report.local_server import LocalServer
from gristmill.report.markup import element, join
from gristmill.report.page import make_document, make_theme_button
from gristmill.report.view.describe import find_picture_type
from gristmill.report.view.requests import Requests
from gristmill.report.view.saved_page import make_saved_page

if TYPE_CHECKING:
    from gristmill.report.local_server import Reply
    from gristmill.report.view.rows import Rows


class Viewer(LocalServer):
    """A server of some collections of rows."""

    def __init__(self, collections: dict[str, Rows], port: int = 0) -> None:
        super().__init__(port)
        self.collections = collections
        self.requests = Requests(collections)

    def answer(self, name: str, words: dict[str, str], reply: Reply) -> None:  # noqa: ARG002  (filters come several times)
        """Answer with the page, or with what it asks for."""
        requests = self.requests
        if not name:
            reply.send_page(self.make_page())
        elif name == "info":
            reply.send_json(requests.describe())
        elif name == "rows":
            reply.send_json(requests.read_rows(reply.words))
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
            element("main", element("div", id="controls"), element("div", id="rows", aria_live="polite"), id="view"),
        )
        scripts = ("rows.js", "view.js")
        return make_document(f"{title} · Gristmill", body, *scripts, connects="'self'", images="'self' data:")

    def _stream_hits(self, reply: Reply) -> None:
        """Send each hit as a line of JSON, as soon as it is found. An error behind the first one is a line, too."""
        hits = self.requests.search(reply.words)  # a wrong expression is told before anything is sent
        reply.send_head("application/x-ndjson", None)
        try:
            for hit in hits:
                reply.send_line(hit)
            reply.send_line({"done": True})
        except GristmillError as error:
            reply.send_line({"error": error.message})
