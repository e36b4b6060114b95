"""One file of separated records (lines, or documents between separators) as raw cells: plain, compressed or unpacked.

Memory: a cell and one record of at most `max_record_bytes`. Of a longer record only the beginning is held; the rest is
counted as it is read.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from gristmill.core.records import QuarantinedRecord
from gristmill.steps.read.cells import CELL_BYTES, StreamDamage, UnpackedPiece
from gristmill.steps.read.raw_cells.cell_cutter import READ_BYTES, CellCutter, ChunkStream, find_safe_start
from gristmill.storage.codecs.compression import decompress, find_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.raw_cells.cell_cutter import ByteStream

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_RECORD_BYTES = 1 << 16
"""How much of the next cell is fetched ahead, for the end of the last record."""


@dataclass(slots=True)
class RawCell:
    """The bytes of one cell: whole records, each followed by the separator."""

    cell: int
    start: int
    """The offset of the first byte in the (decompressed) file."""
    data: memoryview
    """The bytes; valid until the next cell is read."""
    is_terminated: bool
    """Whether the last record is followed by a separator too."""
    num_left_out: int
    """The bytes of the last record that are not in `data`, because it is too large."""
    rest: QuarantinedRecord | None = None
    """In the last cell of a damaged stream: the part that could not be read. Its raw bytes are the beginning of the
    record in which the stream ended; they are not in `data`."""


class RawCells(Protocol):
    """A file that is cut into raw cells."""

    @property
    def file(self) -> SourceFile: ...

    @property
    def can_cut(self) -> bool:
        """Whether the cells are known without reading the data."""

    def cell_sizes(self) -> list[int]:
        """Return the input bytes of each cell, where `can_cut`."""

    def raw_cells(self, first: int = 0, stop: int | None = None) -> Iterator[RawCell]:
        """Cut the cells `first` to `stop`; None: to the end of the file."""


class DelimitedFile:
    """Cuts one file, or an unpacked piece of it, into raw cells."""

    def __init__(
        self,
        file: SourceFile,
        separator: bytes,
        max_record_bytes: int,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        self.file = file
        self.separator = separator
        self._max_held = cell_bytes + max_record_bytes + len(separator)
        self._piece = piece
        self._codec = None if piece else find_codec(file.path)
        self._cell_bytes = cell_bytes
        self.can_cut = self._codec is None
        self.start = 0
        """The offset of the first record."""

    def cell_sizes(self) -> list[int]:
        if self._piece is not None:
            return [self._cell_bytes] * self._piece.num_cells
        full, rest = divmod(self.file.num_bytes, self._cell_bytes)
        return [self._cell_bytes] * full + ([rest] if rest else [])

    def raw_cells(self, first: int = 0, stop: int | None = None) -> Iterator[RawCell]:
        """Yield the cells of a range. In the middle of a compressed file, everything before it must be unpacked too."""
        if self._piece is not None:
            first = max(first, self._piece.first_cell)
            last = self._piece.first_cell + self._piece.num_cells
            stop = last if stop is None else min(stop, last)
        with self._open(first, stop) as cutter:
            yield from self._gather_cells(cutter, first, stop)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield each cell's number and bytes; the bytes of a cell with a large record come in several pieces."""
        with self._open(0) as cutter:
            for cell, pieces in cutter.cells(0, None):
                num_pieces = 0
                for piece in pieces:
                    yield cell, bytes(piece)
                    num_pieces += 1
                if not num_pieces:
                    yield cell, b""
            if cutter.error is not None:
                raise cutter.error

    def _gather_cells(self, cutter: CellCutter, first: int, stop: int | None) -> Iterator[RawCell]:
        expected = first
        for cell, pieces in cutter.cells(first, stop):
            start = cutter.position
            data, num_left_out = self._hold_bytes(cutter, pieces)
            if start == 0 and data[:3] == BYTE_ORDER_MARK:
                data, start = data[3:], 3
            raw = RawCell(cell, start, data, cutter.terminated, num_left_out)
            if cutter.at_end() and cutter.error:
                self._break_off(raw, StreamDamage.from_error(cutter.error))
            yield raw
            expected = cell + 1
        if self._piece is not None and stop is not None:
            for cell in range(expected, stop):  # a record that ends beyond the piece's last cells
                yield RawCell(cell, cutter.position, memoryview(b""), is_terminated=True, num_left_out=0)

    def _hold_bytes(self, cutter: CellCutter, pieces: Iterator[memoryview]) -> tuple[memoryview, int]:
        """Return the bytes of a cell, without those of a large record beyond the limit, and how many these are."""
        views: list[memoryview | bytes] = []
        num_held = num_left_out = 0
        for piece in pieces:
            within = piece[: max(0, self._max_held - num_held)]
            # The last piece may stay a view of the cutter's buffer; earlier ones are overwritten, so they are copied.
            views.append(within if cutter.terminated else bytes(within))
            num_held += len(within)
            num_left_out += len(piece) - len(within)
        return memoryview(views[0] if len(views) == 1 else b"".join(views)), num_left_out

    def _break_off(self, raw: RawCell, damage: StreamDamage) -> None:
        """Remove the record in which the stream ended from the cell."""
        end = raw.start + len(raw.data) + raw.num_left_out
        fragment, num_bytes = b"", 0
        if not raw.is_terminated:
            fragment = bytes(raw.data).split(self.separator)[-1]
            num_bytes = len(fragment) + raw.num_left_out
            raw.data = raw.data[: len(raw.data) - len(fragment)]
        raw.rest = QuarantinedRecord(
            file=self.file.id,
            position=end - num_bytes,
            part=0,
            reason=damage.reason,
            message=damage.message,
            raw=fragment if fragment and len(fragment) == num_bytes else None,
            num_bytes=num_bytes,
        )
        if not raw.is_terminated:
            raw.is_terminated, raw.num_left_out = True, 0

    @contextmanager
    def _open(self, first: int, stop: int | None = None) -> Iterator[CellCutter]:
        """Open a cutter at a place from which cell `first` can be found; it will be read up to cell `stop`."""
        if self._codec is not None:
            with closing(read_unpacked_chunks(self.file.path)) as chunks:
                yield CellCutter(ChunkStream(chunks), 0, self.separator, self._cell_bytes)
            return
        path, shift, end_error, num_bytes = self.file.path, 0, None, self.file.num_bytes
        if self._piece is not None:
            path, shift, num_bytes = self._piece.path, self._piece.start, self._piece.num_cells * self._cell_bytes
            end_error = self._piece.damage.to_error() if self._piece.damage else None
        at = first * self._cell_bytes
        start = shift if at <= shift else find_safe_start(path, shift, at, self.separator)
        ahead_to = None if stop is None else stop * self._cell_bytes + _RECORD_BYTES - shift
        with open_input(path, start - shift, ahead_to) as stream:
            source = cast("ByteStream", stream)
            rest = num_bytes + shift - start
            yield CellCutter(source, start, self.separator, self._cell_bytes, rest, end_error)


def read_unpacked_chunks(path: str) -> Generator[bytes]:
    """Yield the content of a file that may be compressed, unpacked."""
    codec = find_codec(path)
    with open_input(path) as stream:
        if codec is not None:
            yield from decompress(stream, codec)
            return
        while chunk := stream.read(READ_BYTES):
            yield chunk
