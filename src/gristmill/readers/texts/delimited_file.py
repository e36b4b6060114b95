"""One file of separated records (lines, or documents between separators) as raw cells: plain, compressed or unpacked.

Memory: a cell and one record of at most `max_record_bytes`. Of a longer record only the beginning is held; the rest is
counted as it is read.

In a JSON array and in CSV, quotes decide where a record begins, so everything before a cell is scanned (`ScannedFile`).
For a file of several units this is done once, and the beginning of each unit is noted (see `UnpackedPiece`).

Raw cells are cut into records here, with the quarantine of those that no format allows: too large, or not UTF-8.
"""

from __future__ import annotations

import re
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError
from gristmill.core.records import QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, ElementRange, StreamDamage, UnpackedPiece, is_utf8
from gristmill.readers.texts.cell_cutter import READ_BYTES, CellCutter, ChunkStream, find_safe_start
from gristmill.storage.codecs import decompress, find_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.readers.texts.cell_cutter import ByteStream


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

    @property
    def elements(self) -> ElementRange | None:
        """The place of a JSON array in the file."""
        return None

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
            num_bytes=num_bytes + damage.num_unread,
            is_unread=True,
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


def read_head(path: str, start: int, separator: bytes, most: int) -> bytes:
    """Read the bytes from `start` on that a sample needs: `most` and the rest of a record, but at most a cell."""
    data = bytearray()
    with closing(read_unpacked_chunks(path)) as chunks, suppress(CorruptStreamError):
        for chunk in chunks:  # of a damaged file the readable part is the sample; the run reports the damage
            data += chunk[start:]
            start = max(0, start - len(chunk))
            if len(data) >= CELL_BYTES or (len(data) >= most and separator and separator in data):
                break
    return bytes(data)


class Scanner(Protocol):
    """A scanner that follows the quotes of a file, in pieces of any size."""

    def find_start(self, data: bytearray, begin: int, end: int, at_least: int, /) -> int | None:
        """Find the first record that begins at or after `at_least`; scans up to it, or up to `end`."""


class ScannedCutter(CellCutter):
    """A cutter whose cells begin at the records that a scanner finds."""

    def __init__(
        self,
        stream: ByteStream,
        start: int,
        scanner: Scanner,
        cell_bytes: int,
        num_bytes: int = 0,
        piece: UnpackedPiece | None = None,
    ) -> None:
        damage = piece.damage.to_error() if piece is not None and piece.damage is not None else None
        super().__init__(stream, start, b"\n", cell_bytes, num_bytes, damage)
        self._scanner = scanner

    def _find_end(self, border: int) -> int | None:
        at_least = self._begin + border - self.position
        start = self._scanner.find_start(self._buffer, self._begin + self._scanned, self._end, at_least)
        self._scanned = (self._end if start is None else start) - self._begin
        return None if start is None else self._scanned


class ScannedFile(DelimitedFile):
    """Cuts one file, or an unpacked piece of it, into raw cells from its first record on."""

    def __init__(
        self,
        file: SourceFile,
        start: int,
        max_record_bytes: int,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        super().__init__(file, b"\n", max_record_bytes, piece, cell_bytes)
        self.start = start

    def _cutter(self, stream: ByteStream, start: int, num_bytes: int = 0) -> CellCutter:
        """Make the cutter of a stream that begins at `start` of the file."""
        raise NotImplementedError

    def _chunks(self) -> Generator[bytes]:
        return read_unpacked_chunks(self.file.path)

    def _break_off(self, raw: RawCell, damage: StreamDamage) -> None:
        end = raw.start + len(raw.data) + raw.num_left_out
        raw.rest = damage.quarantine_rest(self.file.id, end)

    @contextmanager
    def _open(self, first: int, stop: int | None = None) -> Iterator[CellCutter]:  # noqa: ARG002  (all before it must be scanned)
        piece = self._piece
        if not self.can_cut:
            with closing(self._chunks()) as chunks:
                stream = ChunkStream(chunks)
                stream.skip(self.start)
                yield self._cutter(stream, self.start)
            return
        path, start, offset = self.file.path, self.start, self.start
        if piece is not None:
            path, start, offset = piece.path, piece.start, piece.offset
        with open_input(path, offset) as opened:
            yield self._cutter(cast("ByteStream", opened), start, self.file.num_bytes)


_SEARCHED_BYTES = 1 << 17
"""How much of a cell is searched for line ends at once."""


@dataclass(slots=True)
class CutRecords:
    """The usable records of a cell, as ranges of its bytes, and the quarantined ones.

    Records are sliced when they are needed: a list of some 10,000 views would keep Python's garbage collector busy.
    """

    raw: RawCell
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    quarantined: list[QuarantinedRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[memoryview]:
        data = self.raw.data
        return (data[start:stop] for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.raw.data[self.starts[index] : self.stops[index]])

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.starts + self.raw.start

    def are_enclosed(self, first: bytes, last: bytes) -> bool:
        """Whether each record begins and ends with these bytes; a carriage return at its end does not count."""
        data = np.frombuffer(self.raw.data, np.uint8)
        if (self.stops <= self.starts).any():
            return False
        ends = data[self.stops - 1]
        returns = (ends == ord("\r")) & (self.stops - self.starts > 1)
        if returns.any():
            ends = data[self.stops - 1 - returns]
        return bool((data[self.starts] == first[0]).all() and (ends == last[0]).all())

    def join_records(self, strip: int) -> pa.LargeBinaryArray:
        """Return all records as an array, each without one byte `strip` at its end. Copied once: 0.8 GB/s."""
        ends = self._find_ends(strip)
        offsets = np.zeros(len(ends) + 1, np.int64)
        np.cumsum(ends - self.starts, out=offsets[1:])
        data = self.raw.data
        values = b"".join([data[start:stop] for start, stop in zip(self.starts.tolist(), ends.tolist(), strict=True)])
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        )

    def _find_ends(self, strip: int) -> NDArray[np.int64]:
        ends = self.stops
        if len(ends):
            ends = ends - (np.frombuffer(self.raw.data, np.uint8)[ends - 1] == strip)
        return ends

    def drop(self, rows: list[int]) -> None:
        self.starts, self.stops = np.delete(self.starts, rows), np.delete(self.stops, rows)


def cut_records(raw: RawCell, file: int, separator: bytes, max_record_bytes: int) -> CutRecords:
    """Find the records of a cell, about 2 GB/s."""
    width = len(separator)
    # Records begin at the start of a cell and after each separator.
    if len(separator) == 1:
        ends = _find_bytes(np.frombuffer(raw.data, np.uint8), separator[0]) + 1
    else:
        ends = np.fromiter((match.end() for match in re.finditer(re.escape(separator), raw.data)), np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    stops = np.append(starts[1:] - width, len(raw.data))
    if starts[-1] == len(raw.data) and not raw.num_left_out:
        starts, stops = starts[:-1], stops[:-1]  # nothing follows the last separator
    cut = CutRecords(raw, starts, stops)
    sizes = stops - starts
    if raw.num_left_out:
        sizes[-1] += raw.num_left_out - (width if raw.is_terminated else 0)
    return quarantine_unreadable(cut, file, sizes, max_record_bytes)


def quarantine_unreadable(cut: CutRecords, file: int, sizes: NDArray[np.int64], max_record_bytes: int) -> CutRecords:
    """Quarantine the records that are too large, by their `sizes`, or not UTF-8."""
    if len(sizes) and sizes.max() > max_record_bytes:
        _quarantine_records(cut, _find_too_large(cut, file, sizes, max_record_bytes))
    if not is_utf8(cut.raw.data):
        _quarantine_records(cut, _find_invalid_utf8(cut, file))
    return cut


def _quarantine_records(cut: CutRecords, by_row: dict[int, QuarantinedRecord]) -> None:
    cut.drop(list(by_row))
    cut.quarantined += by_row.values()


def _find_too_large(cut: CutRecords, file: int, sizes: NDArray[np.int64], most: int) -> dict[int, QuarantinedRecord]:
    return {
        int(index): QuarantinedRecord(
            file=file,
            position=int(cut.positions[index]),
            part=0,
            reason="too_large",
            message=f"{sizes[index]} bytes, more than max_record_bytes ({most})",
            num_bytes=int(sizes[index]),
            is_malformed=True,
        )
        for index in np.flatnonzero(sizes > most)
    }


def _find_invalid_utf8(cut: CutRecords, file: int) -> dict[int, QuarantinedRecord]:
    by_row = {}
    for index, record in enumerate(cut):
        try:
            str(record, "utf-8")
        except UnicodeDecodeError as error:
            position = int(cut.positions[index])
            raw = bytes(record)
            by_row[index] = QuarantinedRecord(
                file, position, 0, "invalid_utf8", str(error), raw, len(raw), is_malformed=True
            )
    return by_row


def _find_bytes(data: NDArray[np.uint8], value: int) -> NDArray[np.int64]:
    """Return where a byte occurs. A temporary array of a whole cell would leave the cache: twice the time."""
    is_value = np.empty(min(_SEARCHED_BYTES, len(data)), np.bool_)
    positions = [
        np.flatnonzero(np.equal(piece, value, out=is_value[: len(piece)])) + start
        for start in range(0, len(data), _SEARCHED_BYTES)
        if len(piece := data[start : start + _SEARCHED_BYTES])
    ]
    return np.concatenate(positions) if positions else np.empty(0, np.int64)
