"""The viewer's server: on the loopback interface only, behind a random token in the address, and read-only.

The token is compared in constant time. A request that names another host is refused, so that no page of the web can
reach the server through a name of its own (DNS rebinding). Nothing but rows of what was opened can be asked for: no
path of a request is ever a path of the disk.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from gristmill.core.errors import GristmillError
from gristmill.report.markup import element, join
from gristmill.report.page import make_document, make_theme_button
from gristmill.report.view.rows import count_rows, search_rows

if TYPE_CHECKING:
    from gristmill.report.view.rows import Rows

_MAX_ROWS = 100
_MAX_HITS = 200
_HOST = "127.0.0.1"


class Viewer:
    """A server of some collections of rows. `start` serves them in a thread, `serve` in this one."""

    def __init__(self, collections: dict[str, Rows], port: int = 0) -> None:
        self.collections = collections
        self.token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()  # readers keep state, and two browsers may ask at once
        self._server = ThreadingHTTPServer((_HOST, port), _make_handler(self))
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}/{self.token}/"

    def start(self) -> None:
        """Serve in a thread that ends with this process."""
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """Serve until `close` is called."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._server.shutdown()
        self._server.server_close()

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


def _make_handler(viewer: Viewer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET requests below the token, and refuses all others."""

        server_version = "gristmill"
        sys_version = ""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            _, token, *rest = [*parts.path.split("/"), ""]
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            if host not in (_HOST, "localhost") or not hmac.compare_digest(token.encode(), viewer.token.encode()):
                self._send(
                    HTTPStatus.FORBIDDEN, b"wrong address: use the one that gristmill view printed\n", "text/plain"
                )
                return
            words = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            try:
                self._answer("/".join(rest).strip("/"), words)
            except GristmillError as error:
                self._send_json({"error": error.message}, HTTPStatus.BAD_REQUEST)
            except (KeyError, ValueError, IndexError) as error:
                self._send_json({"error": f"bad request: {error}"}, HTTPStatus.BAD_REQUEST)
            except (BrokenPipeError, ConnectionResetError):  # the browser has gone elsewhere
                self.close_connection = True

        def _answer(self, name: str, words: dict[str, str]) -> None:
            if not name:
                self._send(HTTPStatus.OK, viewer.make_page().encode(errors="backslashreplace"), "text/html")
            elif name == "info":
                self._send_json(viewer.describe())
            elif name == "rows":
                count = int(words.get("count", "10"))
                self._send_json(viewer.read_rows(words["name"], int(words.get("start", "0")), count))
            elif name == "search":
                self._stream_hits(words)
            else:
                self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain")

        def _stream_hits(self, words: dict[str, str]) -> None:
            """Send each hit as a line of JSON, as soon as it is found."""
            rows = viewer.collections[words["name"]]
            start, end = int(words.get("start", "0")), int(words.get("end", str(count_rows(rows))))
            hits = search_rows(
                rows, words["query"], is_regex=words.get("regex") == "1", start=start, end=min(end, count_rows(rows))
            )
            first = next(hits, None)  # a wrong expression is told before anything is sent
            self._send_head(HTTPStatus.OK, "application/x-ndjson", None)
            num_hits = 0
            while first is not None and num_hits < _MAX_HITS:
                num_hits += not isinstance(first, int)
                line = {"searched": first} if isinstance(first, int) else first
                self.wfile.write(msgspec.json.encode(line) + b"\n")
                self.wfile.flush()
                with viewer._lock:
                    first = next(hits, None)

        def _send_json(self, data: object, status: HTTPStatus = HTTPStatus.OK) -> None:
            self._send(status, msgspec.json.encode(data, enc_hook=str), "application/json")

        def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self._send_head(status, kind, len(body))
            self.wfile.write(body)

        def _send_head(self, status: HTTPStatus, kind: str, size: int | None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            if size is not None:
                self.send_header("Content-Length", str(size))
            for name, value in (
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
                ("X-Frame-Options", "DENY"),
                ("Connection", "close"),
            ):
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing: addresses would show the token in the terminal."""

    return Handler
