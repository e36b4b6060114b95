"""A web server for one person: on the loopback interface only, behind a random token in the address, and read-only.

The token is compared in constant time. A request that names another host is refused, so that no page of the web can
reach the server through another name (DNS rebinding). No path of a request is ever a path of the disk: a subclass
answers the names that it knows.
"""

from __future__ import annotations

import hmac
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from gristmill.core.errors import GristmillError, UsageError
from gristmill.report.markup import encode_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST = "127.0.0.1"


class LocalServer:
    """A server below a random token. `start` serves in a thread, `serve` in this one."""

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _QuietServer((_HOST, port), _make_handler(self))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror or error}",
                help="choose another port, or 0 for any free one",
            ) from error

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

    def answer(self, name: str, words: dict[str, str], reply: Reply) -> None:
        """Answer a request for `name` below the token. A `GristmillError`, `KeyError` or `ValueError` is told."""
        raise NotImplementedError


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke or stalls: a browser may go elsewhere at any time."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Reply(BaseHTTPRequestHandler):
    """One request, and the ways to answer it. Refuses all methods but GET."""

    server_version = "gristmill"
    sys_version = ""
    timeout = 20.0  # of each read and write: a half-open connection must not hold a thread forever
    local_server: LocalServer
    words: dict[str, list[str]]
    """All words of the request, for those that come several times."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path if self.path.startswith("/") else "/")
        _, token, *rest = [*parts.path.split("/"), ""]
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        expected = self.local_server.token
        if host not in (_HOST, "localhost") or not hmac.compare_digest(token.encode(), expected.encode()):
            self.send_body(b"wrong address: use the one that gristmill printed\n", "text/plain", HTTPStatus.FORBIDDEN)
            return
        self.words = parse_qs(parts.query, keep_blank_values=True)
        words = {name: values[-1] for name, values in self.words.items()}
        try:
            self.local_server.answer("/".join(rest).strip("/"), words, self)
        except GristmillError as error:
            self.send_json({"error": error.message}, HTTPStatus.BAD_REQUEST)
        except (KeyError, ValueError, IndexError) as error:
            self.send_json({"error": f"bad request: {error}"}, HTTPStatus.BAD_REQUEST)
        except (ConnectionError, TimeoutError):  # the browser has gone elsewhere
            raise
        except OSError as error:
            self.send_json({"error": f"cannot be read: {error}"}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def send_page(self, page: str) -> None:
        """Send a page of HTML."""
        self.send_body(page.encode(errors="backslashreplace"), "text/html")

    def send_json(self, data: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send a value as JSON."""
        self.send_body(encode_plain(data), "application/json", status)

    def send_line(self, data: object) -> None:
        """Send a value as a line of JSON, at once."""
        self.wfile.write(encode_plain(data) + b"\n")
        self.wfile.flush()

    def send_not_found(self) -> None:
        """Tell that there is nothing with this name."""
        self.send_body(b"not found\n", "text/plain", HTTPStatus.NOT_FOUND)

    def send_body(
        self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Send an answer of a known size."""
        self.send_head(kind, len(body), status, headers)
        self.wfile.write(body)

    def send_head(
        self, kind: str, size: int | None, status: HTTPStatus = HTTPStatus.OK, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Send the headers; without a size the answer ends with the connection."""
        self.send_response(status)
        self.send_header("Content-Type", kind if kind.startswith("image/") else f"{kind}; charset=utf-8")
        if size is not None:
            self.send_header("Content-Length", str(size))
        for name, value in (
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Connection", "close"),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: addresses would show the token in the terminal."""


def _make_handler(server: LocalServer) -> type[Reply]:
    class ServerReply(Reply):
        """A reply of this server."""

        local_server = server

    return ServerReply
