"""A proxy before a web server that breaks connections and answers on demand."""

import random
import socket
import struct
import threading
import time

RESET, CUT, BUSY, DENIED, BROKEN, LOST = "reset", "cut", "busy", "denied", "broken", "lost"
CONFLICT = "conflict"
"""What S3 answers to a conditional write while another one is under way."""
EXPIRED = "expired"
"""What S3 answers to temporary credentials whose time is over."""
CHANGED = "changed"
"""One byte of the request's body arrives as another one."""
SLOW, STALLED = "slow", "stalled"
"""The answer comes in drops; its second half never comes."""
_DROPS, _DROP_SECONDS = 20, 0.01
_ANSWERS = {
    BUSY: "503 Slow Down",
    DENIED: "403 Forbidden",
    BROKEN: "500 Internal Server Error",
    CONFLICT: "409 Conflict",
    EXPIRED: "400 Bad Request",
}
_BODIES = {
    CONFLICT: "<Error><Code>ConditionalRequestConflict</Code><Message>The conditional request cannot succeed due to a "
    "conflicting operation against this resource.</Message></Error>",
    EXPIRED: "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
}


class FaultyProxy:
    """Forwards each request on a connection of its own; `fault(line, number)` says what goes wrong with it, or None.

    `line` is the request's first one, `number` counts requests from 0. `requests` are all lines so far, `answers` those
    that were answered in full, each with the number of bytes in its answer.
    """

    def __init__(self, port, fault=lambda line, number: None):
        self.fault = fault
        self.requests, self.answers = [], []
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client):
        with client:
            try:
                self._answer(client)
            except OSError:
                pass

    def _answer(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            piece = client.recv(65536)
            if not piece:
                return
            head += piece
        headers, _, body = head.partition(b"\r\n\r\n")
        first, *others = headers.split(b"\r\n")
        sizes = [int(line.split(b":")[1]) for line in others if line.lower().startswith(b"content-length:")]
        while sizes and len(body) < sizes[0]:
            piece = client.recv(1 << 20)
            if not piece:
                return
            body += piece
        with self._lock:
            number = len(self.requests)
            self.requests.append(first.decode())
            fault = self.fault(first.decode(), number)
        if fault == RESET:
            self._reset(client)
            return
        if fault in _ANSWERS:
            text = _BODIES.get(fault, "")
            lines = (f"HTTP/1.1 {_ANSWERS[fault]}", f"Content-Length: {len(text)}", "Connection: close", "", text)
            client.sendall("\r\n".join(lines).encode())
            return
        if fault == CHANGED and body:
            body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
        kept = [line for line in others if not line.lower().startswith(b"connection:")]
        with socket.create_connection(("127.0.0.1", self._upstream)) as upstream:
            upstream.sendall(b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n" + body)
            answer = b""
            while piece := upstream.recv(1 << 20):
                answer += piece
        if fault == LOST:  # the server has done it, and nobody hears of it
            self._reset(client)
            return
        if fault == CUT:
            client.sendall(answer[: len(answer) // 2])
            self._reset(client)
            return
        if fault == STALLED:
            client.sendall(answer[: len(answer) // 2])
            client.recv(1)  # until the client gives up
            return
        if fault == SLOW:
            size = -(-len(answer) // _DROPS)
            for start in range(0, len(answer), size):
                client.sendall(answer[start : start + size])
                time.sleep(_DROP_SECONDS)
            return
        with self._lock:
            self.answers.append((first.decode(), len(answer.partition(b"\r\n\r\n")[2])))
        client.sendall(answer)

    @staticmethod
    def _reset(client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_of_them(seed, *faults):
    """Every second request fails, in one of these ways, at random."""
    rng = random.Random(seed)
    return lambda line, number: rng.choice(faults) if rng.random() < 0.5 else None
