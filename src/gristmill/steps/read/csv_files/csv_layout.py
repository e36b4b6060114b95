"""The layout of a CSV file, found from its first rows: delimiter, quotes, columns, where the rows begin.

Each delimiter is tried on the first 256 KiB; the one by which most rows have as many fields as the header is chosen.
Quotes that begin fields and do not end them, as in many TSV files, are ordinary characters. The first row names the
columns.
"""

from __future__ import annotations

import codecs
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.steps.read.cells import CELL_BYTES
from gristmill.steps.read.csv_files.csv_rows import IN_QUOTES, WITH_QUOTES, Dialect, RowScanner, unquote_field
from gristmill.steps.read.raw_cells.delimited_file import BYTE_ORDER_MARK, read_unpacked_chunks
from gristmill.storage.codecs.compression import strip_codec

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from gristmill.steps.read.csv_files.csv_rows import CsvRows
    from gristmill.steps.read.read import Read

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


def read_csv_head(read: Read, path: str, layout: CsvLayout, most: int) -> bytes:
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
        try:
            for chunk in chunks:
                yield decoder.decode(chunk).encode()
            yield decoder.decode(b"", final=True).encode()
        except UnicodeError as error:
            raise CorruptStreamError(f"not {transcoded_from}: {error}", reason="invalid_encoding") from error


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
        num_quoted, num_loose = _count_quotes(rows, sample)
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


def _count_quotes(rows: CsvRows, sample: bytes) -> tuple[int, int]:
    """Count the fields with quotes around them, and those with something behind the closing quote."""
    fields = rows.fields[:-1] if rows.is_unclosed else rows.fields
    num_whole = int((fields[:, 2] == IN_QUOTES).sum())
    inner = fields[fields[:, 2] == WITH_QUOTES][:, 1].tolist()
    num_ended = sum(sample[stop - 1 : stop] == b'"' for stop in inner)
    return num_whole + num_ended, len(inner) - num_ended


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
        raise UsageError(f"{path}: {count} columns are called {name!r}", help="give each a name of its own")
    for name in read.types or {}:
        if name not in names:
            raise UsageError(
                f"{path}: types names {name!r}, but the columns are {', '.join(names[:20])}",
                help="correct the name; or set `delimiter` if the columns were not separated",
            )
