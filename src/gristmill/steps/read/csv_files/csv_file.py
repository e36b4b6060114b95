"""CSV and TSV: one record a row, with the names of the header. Values are text, unless `types` says otherwise.

A row becomes the equivalent JSON object, so that rows are handled like JSON records: the text, named columns and other
columns. A row with more or fewer fields than the header is quarantined as `ragged_row`; a quote that is never closed
makes the rest of the file one record, quarantined as `unclosed_quote`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.records import QuarantinedRecord
from gristmill.steps.read.cells import CELL_BYTES, CellBatch
from gristmill.steps.read.csv_files.csv_layout import read_csv_chunks
from gristmill.steps.read.csv_files.csv_rows import CsvRows, RowScanner, count_first_quotes, unquote_field
from gristmill.steps.read.json_files.json_lines import JsonLinesReader
from gristmill.steps.read.raw_cells.cut_records import CutRecords
from gristmill.steps.read.raw_cells.delimited_file import RawCell
from gristmill.steps.read.raw_cells.scanned_file import ScannedCutter, ScannedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.cells import UnpackedPiece
    from gristmill.steps.read.csv_files.csv_layout import CsvLayout
    from gristmill.steps.read.raw_cells.cell_cutter import ByteStream, CellCutter
    from gristmill.steps.read.read import Read

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LITERAL_QUOTES = "literal_quotes"
"""The counter of fields that begin with a quote in a file whose quotes are ordinary characters."""
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


class CsvFile(ScannedFile):
    """A CSV file, or an unpacked piece of it, cut into raw cells."""

    def __init__(
        self,
        file: SourceFile,
        layout: CsvLayout,
        max_record_bytes: int,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
        encoding: str | None = None,
    ) -> None:
        super().__init__(file, layout.start, max_record_bytes, piece, cell_bytes)
        self.layout = layout
        self._transcoded_from = (encoding or "utf-16") if layout.is_transcoded else None
        self.can_cut = self.can_cut and (piece is not None or not layout.is_transcoded)

    def _cutter(self, stream: ByteStream, start: int, num_bytes: int = 0) -> CellCutter:
        return ScannedCutter(stream, start, RowScanner(self.layout.dialect), self._cell_bytes, num_bytes, self._piece)

    def _chunks(self) -> Generator[bytes]:
        return read_csv_chunks(self.file.path, self._transcoded_from)


@dataclass(slots=True)
class RowRecords(CutRecords):
    """Rows as JSON objects, one a line, and the positions of the rows in the file."""

    row_positions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.row_positions

    def drop(self, rows: list[int]) -> None:
        super(RowRecords, self).drop(rows)  # by name: a dataclass with slots is another class than the one written here
        self.row_positions = np.delete(self.row_positions, rows)


class CsvReader(JsonLinesReader):
    """Reads a CSV file cell by cell."""

    _cuts_lines = False

    def __init__(self, read: Read, cells: CsvFile, schema: pa.Schema) -> None:
        super().__init__(read, cells, schema)
        self._rows = RowDecoder(read, cells.layout)
        self._num_blank = self._num_literal_quotes = 0

    def parse(self, raw: RawCell, *, keeps_strings: bool = False) -> CellBatch:
        cell = super().parse(raw, keeps_strings=keeps_strings)
        cell.num_blank += self._num_blank
        cell.counters[LITERAL_QUOTES] += self._num_literal_quotes
        return cell

    def _cut_cell(self, raw: RawCell) -> CutRecords:
        file = self._cells.file.id
        whole = raw.data.obj  # a large cell was joined into bytes already: do not copy it again
        data = whole if isinstance(whole, bytes) and len(whole) == len(raw.data) else bytes(raw.data)
        dialect = self._rows.layout.dialect
        scanned = RowScanner(dialect).split(data)
        self._num_literal_quotes = 0 if dialect.has_quotes else count_first_quotes(data, scanned)
        lines: list[bytes] = []
        positions: list[int] = []
        quarantined: list[QuarantinedRecord] = []
        self._num_blank = 0
        for row in range(len(scanned.rows)):
            start, stop = scanned.rows[row, :2].tolist()
            is_open = row == len(scanned.rows) - 1 and not scanned.has_line_end
            position, num_bytes = raw.start + start, stop - start + (raw.num_left_out if is_open else 0)
            content = None if is_open and raw.num_left_out else data[start:stop]
            if is_open and raw.rest is not None:
                raw.rest = replace(raw.rest, position=position, raw=content, num_bytes=num_bytes)
                continue
            problem: tuple[str, str] | None = None
            if num_bytes > self._read.max_record_bytes:
                most = self._read.max_record_bytes
                content, problem = None, ("too_large", f"{num_bytes} bytes, more than max_record_bytes ({most})")
            elif is_open and scanned.is_unclosed:
                problem = "unclosed_quote", "a quote is opened and not closed before the end of the file"
            else:
                line = self._rows.decode(data, scanned, row)
                if line is None:
                    self._num_blank += 1
                elif isinstance(line, bytes):
                    lines.append(line)
                    positions.append(position)
                else:
                    problem = line
            if problem is not None:
                quarantined.append(QuarantinedRecord(file, position, 0, *problem, content, num_bytes))
        sizes = np.fromiter(map(len, lines), np.int64, len(lines))
        stops = np.cumsum(sizes + 1) - 1
        objects = RawCell(raw.cell, 0, memoryview(b"\n".join(lines)), is_terminated=False, num_left_out=0)
        return RowRecords(objects, stops - sizes, stops, quarantined, np.array(positions, np.int64))

    def _account_for_rest(
        self, rest: QuarantinedRecord, batch: pa.RecordBatch, quarantined: list[QuarantinedRecord]
    ) -> tuple[pa.RecordBatch, int]:
        """Quarantine the rest of a damaged file, with its last row: a truncated row may look like a whole one."""
        quarantined.append(rest)
        return batch, 0


class RowDecoder:
    """A decoder of rows to JSON objects."""

    def __init__(self, read: Read, layout: CsvLayout) -> None:
        self.layout = layout
        self._types = [_TYPES[(read.types or {}).get(name, "string")] for name in layout.names]
        self._has_types = bool(read.types)

    def decode(self, data: bytes, rows: CsvRows, row: int) -> bytes | tuple[str, str] | None:
        """Return a row as a JSON object, or the reason and message of a bad row; None for a blank row."""
        first = int(rows.rows[row - 1, 2]) if row else 0
        fields = rows.fields[first : rows.rows[row, 2]].tolist()
        names = self.layout.names
        if not fields:
            return None
        if len(fields) != len(names):
            return "ragged_row", f"{len(fields)} fields, but the header names {len(names)}"
        try:
            values: list[Any] = [unquote_field(data, *field).decode(self.layout.encoding) for field in fields]
        except UnicodeDecodeError as error:
            return "invalid_utf8" if self.layout.encoding == "utf-8" else "invalid_encoding", str(error)
        if self._has_types:
            for index, convert in enumerate(self._types):
                try:
                    values[index] = convert(values[index])
                except _ValueMismatch as error:
                    return error.reason, f"column {names[index]!r}: {values[index]!r:.100} {error}"
        try:
            return msgspec.json.encode(dict(zip(names, values, strict=True)))
        except UnicodeEncodeError as error:  # some encodings decode to lone surrogates
            return "lone_surrogate", str(error)

    def sample(self, data: bytes) -> Iterator[bytes]:
        """Yield the good rows of a run of bytes; the last row may be cut off, and is left out."""
        rows = RowScanner(self.layout.dialect).split(data)
        for row in range(len(rows.rows) - (0 if rows.has_line_end else 1)):
            if isinstance(line := self.decode(data, rows, row), bytes):
                yield line


class _ValueMismatch(Exception):
    """A value does not have the declared type."""

    def __init__(self, message: str, reason: str = "column_type") -> None:
        super().__init__(message)
        self.reason = reason


def _to_integer(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not _INTEGER.fullmatch(text):
        raise _ValueMismatch("is not a whole number")
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise _ValueMismatch("does not fit into 64 bits", "number_out_of_range")
    return int(text)


def _to_float(text: str) -> float | None:
    text = text.strip()
    if not text:
        return None
    if not _FLOAT.fullmatch(text):
        raise _ValueMismatch("is not a number")
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _ValueMismatch("is too large for a float64", "number_out_of_range")
    return number


def _to_bool(text: str) -> bool | None:
    text = text.strip().lower()
    if text and text not in _TRUTHS:
        raise _ValueMismatch("is neither true nor false")
    return _TRUTHS.get(text)


def _to_text(text: str) -> str:
    return text


_TYPES: Mapping[str, Callable[[str], Any]] = {
    "string": _to_text,
    "int64": _to_integer,
    "float64": _to_float,
    "bool": _to_bool,
}
