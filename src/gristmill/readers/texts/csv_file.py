"""CSV and TSV: one record a row, with the names of the header. Values are text, unless `types` says otherwise.

A row becomes the equivalent JSON object, so that rows are handled like JSON records: the text, named columns and other
columns. A row with more or fewer fields than the header is quarantined as `ragged_row`; a quote that is never closed
makes the rest of the file one record, quarantined as `unclosed_quote`.

The layout (delimiter, quotes, columns) is found from the first rows. Each delimiter is tried on the first 256 KiB; the
one by which most rows have as many fields as the header is chosen. Quotes that begin fields and do not end them, as in
many TSV files, are ordinary characters. The first row names the columns.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.records import QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, CellBatch
from gristmill.readers.texts.csv_rows import (
    IN_QUOTES,
    WITH_QUOTES,
    CsvRows,
    Dialect,
    RowScanner,
    count_first_quotes,
    unquote_field,
)
from gristmill.readers.texts.delimited_file import (
    BYTE_ORDER_MARK,
    CutRecords,
    RawCell,
    ScannedCutter,
    ScannedFile,
    read_unpacked_chunks,
)
from gristmill.readers.texts.json_lines import JsonLinesReader
from gristmill.storage.codecs import strip_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart, UnpackedPiece
    from gristmill.readers.read import Read
    from gristmill.readers.texts.cell_cutter import ByteStream, CellCutter


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


def open_file(part: FilePart, schema: pa.Schema) -> CsvReader:
    """Open a file for reading."""
    return CsvReader(part.read, open_cells(part), schema)


def open_cells(part: FilePart) -> CsvFile:
    """Open the plain bytes of the cells of a file."""
    read, layout = part.read, find_csv_layout(part.read, part.file.path)
    return CsvFile(part.file, layout, read.max_record_bytes, part.piece, part.cell_bytes, read.encoding)


def sample_records(read: Read, file: SourceFile, most: int) -> Iterator[bytes]:
    """Return the records in the first bytes of a file."""
    layout = find_csv_layout(read, file.path)
    return RowDecoder(read, layout).sample(_read_rows(read, file.path, layout, most))


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

    def __init__(self, read: Read, cells: CsvFile, schema: pa.Schema) -> None:
        super().__init__(read, cells, schema)
        self._rows = RowDecoder(read, cells.layout)
        self._num_blank = self._num_literal_quotes = 0

    def parse(self, raw: RawCell) -> CellBatch:
        cell = super().parse(raw)
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
                num_bytes += raw.rest.num_bytes
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
                record = QuarantinedRecord(file, position, 0, *problem, content, num_bytes, is_malformed=True)
                quarantined.append(record)
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


_SAMPLE_BYTES = 256 << 10
_DELIMITERS = (",", "\t", ";", "|")
_WIDE_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ASCII = bytes(range(128))


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """The layout of one CSV file: how its rows are written, and where they begin."""

    dialect: Dialect
    names: tuple[str, ...]
    start: int
    """The offset of the first row after the header."""
    encoding: str
    is_transcoded: bool
    """Whether the file is converted to UTF-8 first, because quotes and line ends are not single bytes in it. Positions
    are then those in the UTF-8 form."""


def find_csv_layout(read: Read, path: str) -> CsvLayout:
    """Find the layout of a file from its beginning."""
    encoding, is_transcoded = _find_encoding(read, path)
    head, is_whole = _read_head(read_csv_chunks(path, encoding if is_transcoded else None))
    encoding = "utf-8" if is_transcoded else encoding
    mark = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    if mark:
        encoding = "utf-8"
    sample = head[mark:]
    dialect = _choose_dialect(read, path, sample, is_whole=is_whole)
    rows = RowScanner(dialect).split(sample)
    header = np.flatnonzero(np.diff(rows.rows[:, 2], prepend=0))[:1]
    if not len(header):
        return CsvLayout(dialect, (), mark + len(sample), encoding, is_transcoded)
    [number] = header.tolist()
    if not is_whole and number == len(rows.rows) - 1:
        raise UsageError(
            f"{path}: the first row has more than {len(sample):,} bytes, and should name the columns",
            help="check that this is CSV, and that its quotes are closed; or set `delimiter`",
        )
    first_field = int(rows.rows[number - 1, 2]) if number else 0
    fields = rows.fields[first_field : rows.rows[number, 2]].tolist()
    names = tuple(
        _decode_name(path, index, unquote_field(sample, *field), encoding) for index, field in enumerate(fields)
    )
    _check_names(path, names, read)
    start = int(rows.rows[number + 1, 0]) if number + 1 < len(rows.rows) else len(sample)
    return CsvLayout(dialect, names, mark + start, encoding, is_transcoded)


def _read_rows(read: Read, path: str, layout: CsvLayout, most: int) -> bytes:
    """Return the first bytes of the rows; if these are not all, the last row may be cut off."""
    encoding = _find_encoding(read, path)[0] if layout.is_transcoded else None
    head, is_whole = _read_head(read_csv_chunks(path, encoding), layout.start + most)
    rows = head[layout.start :]
    return rows + b"\n" if is_whole and rows and not rows.endswith((b"\n", b"\r")) else rows


def read_csv_chunks(path: str, transcoded_from: str | None) -> Generator[bytes]:
    """Yield the content of a file that may be compressed, converted to UTF-8 with `transcoded_from`."""
    with closing(read_unpacked_chunks(path)) as chunks:
        if transcoded_from is None:
            yield from chunks
            return
        decoder = codecs.getincrementaldecoder(transcoded_from)()
        for chunk in chunks:
            before = decoder.getstate()
            try:
                yield decoder.decode(chunk).encode()
            except UnicodeError as error:
                yield from _break_off(decoder, before, chunk, chunks, error)
        try:
            yield decoder.decode(b"", final=True).encode()
        except UnicodeError as error:
            raise _make_encoding_error(error, len(decoder.getstate()[0])) from error


def _break_off(
    decoder: codecs.IncrementalDecoder,
    before: tuple[bytes, int],
    chunk: bytes,
    chunks: Iterator[bytes],
    error: UnicodeError,
) -> Iterator[bytes]:
    """Yield what comes before the bytes that cannot be decoded; raise `CorruptStreamError`, which counts the rest."""
    data = before[0] + chunk
    num_good = error.start if isinstance(error, UnicodeDecodeError) and error.object == data else len(before[0])
    decoder.setstate((b"", before[1]))
    with suppress(UnicodeError):
        yield decoder.decode(data[:num_good]).encode()
    raise _make_encoding_error(error, len(data) - num_good + sum(map(len, chunks))) from error


def _make_encoding_error(error: UnicodeError, num_unread: int) -> CorruptStreamError:
    return CorruptStreamError(f"cannot be decoded: {error}", reason="invalid_encoding", num_unread=num_unread)


def _find_encoding(read: Read, path: str) -> tuple[str, bool]:
    """Return the encoding, and whether the file must be converted to UTF-8 to find its rows."""
    if read.encoding is None:
        start = _read_head(read_csv_chunks(path, None), most=2)[0]
        encoding = _WIDE_MARKS.get(start[:2], "utf-8")
    else:
        encoding = codecs.lookup(read.encoding).name
    try:
        is_wide = _ASCII.decode(encoding) != _ASCII.decode("ascii")
    except UnicodeError:
        is_wide = True
    return encoding, is_wide


def _read_head(chunks: Generator[bytes], most: int = _SAMPLE_BYTES) -> tuple[bytes, bool]:
    """Return the first bytes, and whether these are all."""
    data = bytearray()
    with closing(chunks):
        try:
            for chunk in chunks:
                data += chunk
                if len(data) > most and (most < _SAMPLE_BYTES or len(data) > CELL_BYTES or b"\n" in data):
                    return bytes(data[: max(most, data.find(b"\n") + 1)]), False
        except CorruptStreamError:
            pass  # the readable part is the sample; the run reports the damage
    return bytes(data), True


def _choose_dialect(read: Read, path: str, sample: bytes, *, is_whole: bool) -> Dialect:
    delimiters: Iterable[str] = _DELIMITERS
    if read.delimiter is not None:
        delimiters = (read.delimiter,)
    elif strip_codec(path).lower().endswith(".tsv") and b"\t" in sample.partition(b"\n")[0]:
        delimiters = ("\t",)
    fits = [
        _measure_fit(Dialect(delimiter, skips_space=skips_space), sample, read.text.encode(), is_whole=is_whole)
        for delimiter in delimiters
        for skips_space in ((False, True) if f'{delimiter} "'.encode() in sample else (False,))
    ]
    return max(fits, key=lambda fit: fit.rank).dialect


@dataclass(frozen=True, slots=True)
class _DialectFit:
    """The fit of a dialect to a sample."""

    dialect: Dialect
    rank: tuple[bool, float, int, int]
    """Whether there are columns, the share of rows with as many fields as the header, the number of columns, and how
    many fields have quotes around them."""


def _measure_fit(dialect: Dialect, sample: bytes, text_column: bytes, *, is_whole: bool) -> _DialectFit:
    """Measure how well a dialect fits; `text_column` is the column that holds the text."""
    rows = RowScanner(dialect).split(sample)
    num_quoted = 0
    if dialect.has_quotes:
        # Count the fields with quotes around them, and those with something after the closing quote.
        fields = rows.fields[:-1] if rows.is_unclosed else rows.fields
        num_whole = int((fields[:, 2] == IN_QUOTES).sum())
        inner = fields[fields[:, 2] == WITH_QUOTES][:, 1].tolist()
        num_ended = sum(sample[stop - 1 : stop] == b'"' for stop in inner)
        num_quoted, num_loose = num_whole + num_ended, len(inner) - num_ended
        if num_quoted < num_loose + (rows.is_unclosed and is_whole):
            # Most quotes that begin a field do not end it: they are ordinary characters.
            return _measure_fit(Dialect(dialect.delimiter, has_quotes=False), sample, text_column, is_whole=is_whole)
    counts = np.diff(rows.rows[:, 2], prepend=0)
    if (not is_whole or rows.is_unclosed) and len(counts) > 1:
        counts = counts[:-1]  # the last row may be cut off
    counts = counts[counts > 0]
    num_columns = int(counts[0]) if len(counts) else 0
    agreeing = float((counts[1:] == num_columns).mean()) if len(counts) > 1 else 1.0
    # Ragged rows alone do not rule out a delimiter. It is ruled out if most rows do not have it and if it does not
    # separate the name of the text from others: then it is in the header by chance.
    undivided = float((counts[1:] == 1).mean()) if len(counts) > 1 else 0.0
    has_text = text_column in (unquote_field(sample, *field) for field in rows.fields[:num_columns].tolist())
    makes_columns = num_columns > 1 and (has_text or agreeing >= undivided)
    return _DialectFit(dialect, (makes_columns, agreeing, num_columns, num_quoted))


def _decode_name(path: str, index: int, name: bytes, encoding: str) -> str:
    try:
        return name.decode(encoding) or f"column_{index + 1}"
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: the first row, which names the columns, is not {encoding}: {error}",
            help="set the encoding: `encoding: latin-1`",
        ) from error


def _check_names(path: str, names: tuple[str, ...], read: Read) -> None:
    [(name, count)] = Counter(names).most_common(1)
    if count > 1:
        raise UsageError(f"{path}: {count} columns are called {name!r}", help="give each a different name")
    for name in read.types or {}:
        if name not in names:
            raise UsageError(
                f"{path}: types names {name!r}, but the columns are {', '.join(names[:20])}",
                help="correct the name; or set `delimiter` if the columns were not separated",
            )
