"""Reads exact numbers of bytes from a stream, however it delivers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

_FETCH_BYTES = 2**20


class ByteSource:
    """A buffered stream that returns exact numbers of bytes; its source may return fewer (a pipe, a remote store)."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._fetched = b""
        self._position = 0

    def take(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes`; fewer only at the end of the stream."""
        stop = self._position + num_bytes
        if stop > len(self._fetched):
            self._fetch(num_bytes)
            stop = num_bytes
        data = self._fetched[self._position : stop]
        self._position += len(data)
        return data

    def _fetch(self, num_bytes: int) -> None:
        pieces = [self._fetched[self._position :]]
        missing = max(num_bytes, _FETCH_BYTES) - len(pieces[0])
        while missing > 0 and (piece := self._stream.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
        self._fetched = b"".join(pieces)
        self._position = 0
