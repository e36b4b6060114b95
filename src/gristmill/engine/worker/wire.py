"""Framed messages over a stream socket: kinds, headers, partial reads and partial writes.

A frame is a fixed header, a table of buffer lengths, the pickled body, and the raw buffers. The header carries what the
scheduler must know even when the body cannot be unpickled. Both ends work on the bare file descriptor (`readv`,
`writev`): a worker then need not import `socket`, and large buffers are received in their final memory.
"""

from __future__ import annotations

import mmap
import os
import struct

from gristmill.engine.worker import pickling

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from gristmill.engine.worker.pickling import Buffer

# Parent to worker.
JOB, CHUNK, STOP, FORGET = 1, 2, 3, 4
# Worker to parent.
READY, SETUP_FAILED, RESULTS, COUNTS, UNDECODABLE, FINISHING = 11, 12, 13, 14, 15, 16

# kind, last message of its chunk?, number of buffers, chunk, number of items, body bytes
_HEADER = struct.Struct("=B?xxIqqQ")
_MAX_SEGMENTS = 512  # the kernel takes 1,024 in one call
_MAX_KEPT_BODY_BYTES = 8 << 20
_MMAP_FROM_BYTES = 32 << 20


class Frame:
    """A received message; `load()` unpickles its body, and may raise anything."""

    __slots__ = ("body", "buffers", "chunk", "kind", "last", "num_items")

    def __init__(
        self, kind: int, *, last: bool, chunk: int, num_items: int, body: Buffer, buffers: list[Buffer]
    ) -> None:
        self.kind = kind
        self.last = last
        self.chunk = chunk
        self.num_items = num_items
        self.body = body
        self.buffers = buffers

    def load(self) -> Any:
        """Unpickle the payload. Call it before the next frame is received, which reuses the body's memory."""
        return pickling.decode(self.body, self.buffers)

    @property
    def nbytes(self) -> int:
        """The size of body and buffers."""
        return len(self.body) + sum(len(buffer) for buffer in self.buffers)


def pack(kind: int, payload: object = None, *, last: bool = True, chunk: int = -1, num_items: int = 0) -> list[Buffer]:
    """Return the segments of a frame, in order. Raises what pickling the payload raises."""
    body, buffers = pickling.encode(payload)
    sizes = [buffer.nbytes for buffer in buffers]
    header = _HEADER.pack(kind, last, len(sizes), chunk, num_items, sum(len(segment) for segment in body))
    return [header, struct.pack(f"={len(sizes)}Q", *sizes), *body, *buffers]


def unpack(message: bytes) -> Iterator[Frame]:
    """Return the frames of a message that holds whole ones, one after another."""
    view = memoryview(message)
    while view:
        kind, last, num_buffers, chunk, num_items, body_bytes = _HEADER.unpack_from(view)
        view = view[_HEADER.size :]
        sizes = struct.unpack_from(f"={num_buffers}Q", view)
        view = view[8 * num_buffers :]
        body, view = view[:body_bytes], view[body_bytes:]
        buffers: list[Buffer] = []
        for size in sizes:
            buffers.append(bytearray(view[:size]))  # arrays must be writable, as on any other way
            view = view[size:]
        yield Frame(kind, last=last, chunk=chunk, num_items=num_items, body=body, buffers=buffers)


class Sender:
    """The segments still to be written to a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: list[memoryview] = []

    def push(self, segments: Iterable[Buffer]) -> None:
        """Queue segments; `flush` writes them."""
        self._waiting.extend(memoryview(segment).cast("B") for segment in segments if len(segment))

    def flush(self) -> bool:
        """Write until everything is sent (true) or the descriptor would block (false)."""
        while self._waiting:
            try:
                num_written = os.writev(self._fd, self._waiting[:_MAX_SEGMENTS])
            except BlockingIOError:
                return False
            self._waiting = _drop_prefix(self._waiting, num_written)
        return True


class Receiver:
    """Assembles frames from a file descriptor that may block or not.

    The state machine has three steps: the header gives the number of buffers, the table gives their sizes, then body
    and buffers are read straight into memory of exactly those sizes. `_missing` is always what the current step lacks.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.num_bytes = 0
        self._body = bytearray(4096)
        self._start_frame()

    def _start_frame(self) -> None:
        self._header = bytearray(_HEADER.size)
        self._sizes: bytearray | None = None
        self._segments: list[Buffer] = []
        self._missing: list[memoryview] = [memoryview(self._header)]

    def _reuse_body_buffer(self, size: int) -> Buffer:
        """Return memory for a body. All frames use the same: each is loaded, and so copied, before the next arrives."""
        if size > _MAX_KEPT_BODY_BYTES:
            return _allocate(size)
        if size > len(self._body):
            self._body = bytearray(size)
        return memoryview(self._body)[:size]

    def receive(self) -> Frame | None:
        """Return the next frame; None if the descriptor would block. Raises `EOFError` if the other side is closed."""
        while True:
            while self._missing:
                try:
                    num_bytes = os.readv(self._fd, self._missing[:_MAX_SEGMENTS])
                except BlockingIOError:
                    return None
                if num_bytes == 0:
                    raise EOFError
                self.num_bytes += num_bytes
                self._missing = _drop_prefix(self._missing, num_bytes)
            kind, last, num_buffers, chunk, num_items, body_bytes = _HEADER.unpack(self._header)
            if self._sizes is None:
                self._sizes = bytearray(8 * num_buffers)
                self._missing = [memoryview(self._sizes)] if num_buffers else []
            elif not self._segments:
                sizes = (body_bytes, *struct.unpack(f"={num_buffers}Q", self._sizes))
                self._segments = [self._reuse_body_buffer(sizes[0]), *(_allocate(size) for size in sizes[1:])]
                self._missing = [memoryview(segment).cast("B") for segment in self._segments if len(segment)]
            else:
                body, *buffers = self._segments
                self._start_frame()
                return Frame(kind, last=last, chunk=chunk, num_items=num_items, body=body, buffers=buffers)


def _allocate(size: int) -> Buffer:
    # A bytearray is zeroed on creation, which touches every page twice; fresh anonymous pages are not.
    if size < _MMAP_FROM_BYTES:
        return bytearray(size)
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"not enough memory for a message of {size} bytes") from error


def _drop_prefix(segments: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return the segments without their first `num_bytes`."""
    for position, segment in enumerate(segments):
        if num_bytes < len(segment):
            return [segment[num_bytes:], *segments[position + 1 :]]
        num_bytes -= len(segment)
    return []
