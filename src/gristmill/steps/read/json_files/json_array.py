r"""The elements of a JSON array as records; a bad element affects no other, and an array may be larger than memory.

An element belongs to the cell of its first byte, and that is its position. In the middle of a file, a string cannot be
told from the text between strings: so everything before a cell is scanned for quotes and brackets (see `ScannedFile`).

An element over several lines is kept without its line ends: `record` is always one line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError
from gristmill.core.records import RECORD_TYPE, QuarantinedRecord
from gristmill.steps.read.cells import CELL_BYTES
from gristmill.steps.read.json_files.json_elements import ElementScanner
from gristmill.steps.read.json_files.json_lines import JsonLinesReader
from gristmill.steps.read.raw_cells.cut_records import CutRecords, quarantine_unreadable
from gristmill.steps.read.raw_cells.scanned_file import ScannedCutter, ScannedFile

if TYPE_CHECKING:
    from gristmill.core.records import SourceFile
    from gristmill.steps.read.cells import ElementRange, UnpackedPiece
    from gristmill.steps.read.raw_cells.cell_cutter import ByteStream, CellCutter
    from gristmill.steps.read.raw_cells.delimited_file import RawCell

_SPACE = b" \t\r\n"


class ElementCutter(ScannedCutter):
    """A cutter whose cells begin at an element, the first one at the opening bracket."""

    _scanner: ElementScanner

    def __init__(
        self,
        stream: ByteStream,
        start: int,
        elements: ElementRange,
        cell_bytes: int,
        num_bytes: int = 0,
        piece: UnpackedPiece | None = None,
    ) -> None:
        scanner = ElementScanner(is_open=start != elements.start or not elements.is_array)
        super().__init__(stream, start, scanner, cell_bytes, num_bytes, piece)
        self._is_whole = elements.is_whole
        # The end of a piece was checked when the piece was made.
        self._must_close = elements.is_array and piece is None

    def _find_end(self, border: int) -> int | None:
        size = super()._find_end(border)
        if size is None and self._scanner.is_closed and not self._is_whole and not self._ended:
            self._end, self._ended = self._scanner.end, True  # the array is over: ignore the rest of the object
            self._scanned = self._end - self._begin
        return size

    def _read_more(self) -> bool:
        has_more = super()._read_more()
        if not has_more and self.error is None and self._must_close and not self._scanner.is_closed:
            self.error = CorruptStreamError(
                "the array is not closed: the file is truncated, or a bracket is missing", reason="truncated_array"
            )
        return has_more


class ElementFile(ScannedFile):
    """The array of one file, or an unpacked piece of it, cut into raw cells."""

    def __init__(
        self,
        file: SourceFile,
        elements: ElementRange,
        max_record_bytes: int,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        super().__init__(file, elements.start, max_record_bytes, piece, cell_bytes)
        self.elements = elements

    def _cutter(self, stream: ByteStream, start: int, num_bytes: int = 0) -> CellCutter:
        return ElementCutter(stream, start, self.elements, self._cell_bytes, num_bytes, self._piece)


class JsonArrayReader(JsonLinesReader):
    """A reader of the elements of an array, cell by cell."""

    _cuts_lines = False
    _cells: ElementFile

    def _cut_cell(self, raw: RawCell) -> CutRecords:
        ranges = self._cells.elements
        is_opening = raw.start == ranges.start and ranges.is_array
        elements = ElementScanner(is_open=not is_opening).split(raw.data)
        starts, stops, quarantined = elements.starts, elements.stops, []
        if raw.rest is not None:
            raw.rest = self._rest(raw, raw.rest, elements.unfinished)
        elif elements.unfinished is not None:
            # An element that is too large, or the only record of the file.
            stop = elements.unfinished + len(bytes(raw.data[elements.unfinished :]).rstrip(_SPACE))
            starts, stops = np.append(starts, elements.unfinished), np.append(stops, stop)
        elif elements.end is not None and ranges.is_whole:
            quarantined = self._quarantine_trailing(raw, elements.end)
        cut = CutRecords(raw, starts, stops, quarantined)
        sizes = stops - starts
        if elements.unfinished is not None and len(sizes) > len(elements.starts):
            sizes[-1] += raw.num_left_out
        self._quarantine_empty(cut)
        return quarantine_unreadable(cut, self._cells.file.id, sizes[sizes > 0], self._read.max_record_bytes)

    def _decode_together(self, cut: CutRecords) -> list[Any] | None:
        """Decode all elements in one call: a valid array has exactly the elements that the scanner found."""
        if not len(cut) or cut.quarantined or not cut.are_enclosed(b"{", b"}"):
            return None
        try:
            rows = self._fields.decode_array(b"".join((b"[", cut.raw.data[cut.starts[0] : cut.stops[-1]], b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return rows if len(rows) == len(cut) else None

    def _records(self, cut: CutRecords) -> pa.Array:
        data = bytes(cut.raw.data)
        if b"\n" in data or b"\r" in data:
            return pa.array([self._as_line(element) for element in map(bytes, cut)], RECORD_TYPE)
        return super()._records(cut)

    def _as_line(self, element: bytes) -> bytes:
        if b"\n" not in element and b"\r" not in element:
            return element
        try:
            return msgspec.json.format(element, indent=-1)
        except RecursionError:
            return element.translate(None, b"\r\n")  # line ends are between values: in strings they would be escaped

    def _rest(self, raw: RawCell, rest: QuarantinedRecord, unfinished: int | None) -> QuarantinedRecord:
        """Return the quarantined rest of a truncated array, with the beginning of its unfinished element."""
        if unfinished is None:
            return rest
        fragment = bytes(raw.data[unfinished:]).rstrip(_SPACE)
        return replace(
            rest,
            position=raw.start + unfinished,
            raw=None if raw.num_left_out else fragment,
            num_bytes=len(fragment) + raw.num_left_out,
        )

    def _quarantine_trailing(self, raw: RawCell, end: int) -> list[QuarantinedRecord]:
        """Quarantine the text after the array, if that is not white space alone."""
        data = bytes(raw.data[end:])
        follows = data.strip(_SPACE)
        if not follows and not raw.num_left_out:
            return []
        return [
            QuarantinedRecord(
                file=self._cells.file.id,
                position=raw.start + end + len(data) - len(data.lstrip(_SPACE)),
                part=0,
                reason="after_array",
                message="the file begins with an array, but something follows it",
                raw=None if raw.num_left_out else follows,
                num_bytes=len(follows) + raw.num_left_out,
            )
        ]

    def _quarantine_empty(self, cut: CutRecords) -> None:
        """Quarantine empty places between two commas: unlike a blank line, each is a missing element."""
        empty = np.flatnonzero(cut.starts == cut.stops).tolist()
        cut.quarantined += [
            QuarantinedRecord(
                self._cells.file.id, int(cut.positions[index]), 0, "invalid_json", "no value before a comma or the end"
            )
            for index in empty
        ]
        cut.drop(empty)
