r"""Cuts of a stream of bytes into cells of whole records.

A record belongs to the cell of its first byte: cell k holds the records that start in [k * 4 MiB, (k + 1) * 4 MiB). So
a cell ends at the first record start at or after its border, and to find that from the middle of a file it is enough to
look at the bytes around the border. With lines of 3 bytes and cells of 4, "ab|ab|ab|" (| ends a line) is cut into
"ab|ab|" and "ab|".

Records end where `bytes.split(separator)` would cut. With a separator that can overlap itself (an empty line, "\n\n")
that depends on the bytes before: in "\n\n\n" the first two are the separator, not the last two. Then `find_safe_start`
steps back to a place that no separator spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import CorruptStreamError
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


READ_BYTES = 1 << 20
_FIRST_BYTES = 64 << 10
_LOOK_BACK_BYTES = 64 << 10


def overlaps_itself(separator: bytes) -> bool:
    r"""Whether two occurrences of the separator can share bytes.

    >>> overlaps_itself(b"\n\n"), overlaps_itself(b"--\n")
    (True, False)
    """
    return any(separator.startswith(separator[-size:]) for size in range(1, len(separator)))


def find_safe_start(path: str, shift: int, at: int, separator: bytes) -> int:
    """Find an offset that no separator spans: cutting from there finds every record start at or after `at`.

    Offsets count in the whole stream, of which the file at `path` holds the part from `shift` on.
    """
    width = len(separator)
    here = at - width
    while width > 1 and here > shift:
        low = max(shift, here - _LOOK_BACK_BYTES)
        with open_input(path, low - shift) as stream:
            block = _read_exactly(stream, here + width - 1 - low)
        while True:
            spanning = block.find(separator, max(0, here - width + 1 - low), here + width - 1 - low)
            if spanning < 0:
                return here
            here = low + spanning
            if here - width + 1 < low:
                break
    return max(shift, here)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := stream.read(size - len(data))):
        data += chunk
    return bytes(data)


class ByteStream(Protocol):
    """The input of a cutter: a file, or a `ChunkStream`."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of the buffer and return its size; 0 at the end."""


class ChunkStream:
    """An iterator of chunks as a stream of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = memoryview(b"")

    def skip(self, size: int) -> None:
        """Skip the next bytes."""
        scratch = memoryview(bytearray(min(size, READ_BYTES)))
        while size and (num_read := self.readinto(scratch[:size])):
            size -= num_read

    def readinto(self, buffer: memoryview, /) -> int:
        while not self._held:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._held = memoryview(chunk)
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size


class CellCutter:
    """Cuts a stream of bytes into the bytes of one cell after another.

    They are views of two buffers of a cell and 2 MiB: allocating memory would cost more than all other work here. A
    view is valid until the next one is requested. A record longer than the buffer comes in pieces.
    """

    def __init__(
        self,
        stream: ByteStream,
        start: int,
        separator: bytes,
        cell_bytes: int,
        num_bytes: int = 0,
        end_error: CorruptStreamError | None = None,
    ) -> None:
        """Start at a place that no separator spans. `num_bytes` is the expected size, if it is known."""
        self.position = start
        """The offset of the next byte to be returned."""
        self.terminated = True
        """Whether the bytes returned last ended with a separator."""
        self.error: CorruptStreamError | None = None
        """The reason why the stream ended early, once its end is reached."""
        self._end_error = end_error
        self._stream = stream
        self._separator = separator
        self._overlaps = overlaps_itself(separator)
        self._cell_bytes = cell_bytes
        self._max_buffered = cell_bytes + 2 * READ_BYTES
        self._buffer = bytearray(min(max(num_bytes + 1, _FIRST_BYTES), self._max_buffered))
        self._spare = bytearray()
        self._begin = self._end = 0  # the bytes in the buffer that are not yet returned
        self._scanned = 0  # bytes from `_begin` on in which no separator ends beyond a border
        self._ended = False

    def cells(self, first: int, stop: int | None) -> Iterator[tuple[int, Iterator[memoryview]]]:
        """Yield each cell's number and its bytes, in pieces that must be used before the next cell is requested.

        The end of a damaged stream belongs to the last cell that is yielded; no empty cells follow it.
        """
        for _ in self._take_until(first * self._cell_bytes):
            pass
        cell = first
        while (stop is None or cell < stop) and not self.at_end():
            yield cell, self._take_until((cell + 1) * self._cell_bytes)
            cell += 1
        if self.error is not None:
            if cell == first == 0 and stop != 0:  # nothing could be read, at least after a header
                yield 0, iter(())
            return
        while (stop is None or cell < stop) and cell * self._cell_bytes < self.position:
            yield cell, iter(())
            cell += 1

    def at_end(self) -> bool:
        """Whether nothing is left. Reads ahead, but the last view stays valid."""
        return self._begin == self._end and not self._read_more()

    def _take_until(self, border: int) -> Iterator[memoryview]:
        """Yield the bytes up to the first record start at or after the border."""
        if self.position >= border:
            return
        while True:
            end = self._find_end(border)
            if end is not None:
                self.terminated = True
                yield self._take(end)
                return
            if not self._read_more():
                if self._begin < self._end:
                    self.terminated = False
                    yield self._take(self._end - self._begin)
                return
            if self._end - self._begin > self._cell_bytes + READ_BYTES:
                self.terminated = False
                yield self._take(min(self._scanned, self._end - self._begin))

    def _find_end(self, border: int) -> int | None:
        """Return how many bytes are left of the cell; None if its end is not in the buffer."""
        width = len(self._separator)
        if not self._overlaps:  # else every separator must be looked at, because it decides about the next one
            self._scanned = max(self._scanned, border - self.position - width)
        while (found_at := self._buffer.find(self._separator, self._begin + self._scanned, self._end)) >= 0:
            self._scanned = found_at - self._begin + width
            if self.position + self._scanned >= border:
                return self._scanned
        self._scanned = max(self._scanned, self._end - self._begin - width + 1)
        return None

    def _take(self, size: int) -> memoryview:
        view = memoryview(self._buffer)[self._begin : self._begin + size]
        self._begin += size
        self.position += size
        self._scanned = max(0, self._scanned - size)
        return view

    def _read_more(self) -> bool:
        if self._ended:
            return False
        if self._end == len(self._buffer):
            self._make_room()
        try:
            size = self._stream.readinto(memoryview(self._buffer)[self._end : self._end + READ_BYTES])
        except CorruptStreamError as error:
            size, self._end_error = 0, error
        self._end += size or 0
        if not size:
            self._ended = True
            self.error = self._end_error
        return not self._ended

    def _make_room(self) -> None:
        """Continue in the other buffer: the bytes returned last may still be in use, those before them are not."""
        size = self._end - self._begin
        room = max(size + _FIRST_BYTES, min(8 * len(self._buffer), self._max_buffered))
        if len(self._spare) < room:
            self._spare = bytearray(room)
        memoryview(self._spare)[:size] = memoryview(self._buffer)[self._begin : self._end]
        self._buffer, self._spare = self._spare, self._buffer
        self._begin, self._end = 0, size
