"""Where the rows of a CSV file and their fields begin and end: one pass over the bytes, some hundred MB/s a core.

The grammar is that of Python's `csv` module: a field that begins with a quote extends to the quote that closes it,
including line ends and delimiters, and two quotes in it stand for one; anywhere else a quote is an ordinary character.
So all quotes before a row must be seen to know where it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ROW, _FIELD, _PLAIN, _QUOTED, _CLOSED, _RETURNED = range(6)
"""The modes of the scanner: at the start of a row, at the start of a field, in a plain field, in a quoted field, after
a quote in a quoted field, after a carriage return that ended a row."""
_NO_QUOTE = -1
_QUOTE, _LINE_END, _RETURN, _SPACE = 0x22, 0x0A, 0x0D, 0x20
BARE, IN_QUOTES, WITH_QUOTES = range(3)
"""The forms of a field: without quotes, with quotes around it, or with quotes around it and others inside or after."""
_NONE = np.zeros((0, 3), np.int64)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The way fields are written in a file."""

    delimiter: str
    has_quotes: bool = True
    """Whether quotes enclose fields; else they are ordinary characters."""
    skips_space: bool = False
    """Whether spaces after a delimiter are skipped."""


@dataclass(slots=True)
class CsvRows:
    """The rows of a run of bytes."""

    rows: NDArray[np.int64]
    """For each row: where it begins, where it ends without the line end, and how many fields there are up to its end. A
    blank row has none."""
    fields: NDArray[np.int64]
    """For each field: where it begins and ends, and its form. Quotes around it are left out, unless there are others
    inside."""
    has_line_end: bool
    """Whether the last row has a line end."""
    is_unclosed: bool
    """Whether the bytes end inside a quoted field."""


class RowScanner:
    """A scanner of the rows of a file, in pieces of any size."""

    def __init__(self, dialect: Dialect) -> None:
        self._mode = np.zeros(1, np.int64)
        self._delimiter = ord(dialect.delimiter)
        self._quote = _QUOTE if dialect.has_quotes else _NO_QUOTE
        self._skips_space = dialect.skips_space

    def find_start(self, data: memoryview | bytes | bytearray, begin: int, end: int, at_least: int) -> int | None:
        """Find the first row that begins at or after `at_least`; scans up to it, or up to `end`."""
        start = self._scan(np.frombuffer(data, np.uint8), begin, end, at_least, _NONE, _NONE)
        return start if start >= 0 else None

    def split(self, data: memoryview | bytes) -> CsvRows:
        """Return all rows of a run of bytes that begins at a row; the last may lack its line end."""
        values = np.frombuffer(data, np.uint8)
        max_rows = np.count_nonzero(values == _LINE_END) + np.count_nonzero(values == _RETURN) + 1
        max_fields = max_rows + np.count_nonzero(values == self._delimiter)
        rows, fields = np.empty((max_rows, 3), np.int64), np.empty((max_fields, 3), np.int64)
        num_rows = -1 - self._scan(values, 0, len(values), len(values), rows, fields)
        mode = int(self._mode[0])
        return CsvRows(
            rows=rows[:num_rows],
            fields=fields[: rows[num_rows - 1, 2] if num_rows else 0],
            has_line_end=mode in (_ROW, _RETURNED),
            is_unclosed=mode == _QUOTED,
        )

    def _scan(
        self,
        values: NDArray[np.uint8],
        begin: int,
        end: int,
        at_least: int,
        rows: NDArray[np.int64],
        fields: NDArray[np.int64],
    ) -> int:
        return _scan_rows(
            values, begin, end, at_least, self._mode, self._delimiter, self._quote, self._skips_space, rows, fields
        )


def unquote_field(data: bytes, start: int, stop: int, quoting: int) -> bytes:
    """Return the value of a field, without quotes that enclose it.

    >>> data = b'"say ""hi"" "'
    >>> unquote_field(data, 0, len(data), 2)
    b'say "hi" '
    """
    if quoting != WITH_QUOTES:
        return data[start:stop]
    pieces, at = [], start + 1
    while (quote := data.find(b'"', at, stop)) >= 0:
        pieces.append(data[at:quote])
        at = quote + 1
        if data[at : at + 1] != b'"' or at >= stop:
            break  # text after the closing quote belongs to the field as it is
        pieces.append(b'"')
        at += 1
    return b"".join([*pieces, data[at:stop]])


def count_first_quotes(data: bytes, rows: CsvRows) -> int:
    """Count the fields that begin with a quote."""
    starts = rows.fields[rows.fields[:, 0] < rows.fields[:, 1], 0]
    return int(np.count_nonzero(np.frombuffer(data, np.uint8)[starts] == _QUOTE))


@kernel
def _scan_rows(
    data: NDArray[np.uint8],
    begin: int,
    end: int,
    at_least: int,
    state: NDArray[np.int64],
    delimiter: int,
    quote: int,
    skips_space: bool,  # noqa: FBT001
    rows: NDArray[np.int64],
    fields: NDArray[np.int64],
) -> int:
    """Scan until a row begins at or after `at_least` and return its start; at the end, -1 - the number of rows noted.

    `state` keeps the mode between calls. With an empty array of rows nothing is noted: this only follows the quotes.
    """
    mode = state[0]
    keeps = len(rows) > 0
    num_rows = num_fields = 0
    field_start, quoting = begin, BARE
    at = begin
    while at < end:
        byte = data[at]
        if mode == _RETURNED:
            mode = _ROW
            if byte == _LINE_END:
                at += 1
                continue
        if mode == _ROW:
            if at >= at_least:
                state[0] = mode
                return at
            if keeps:
                rows[num_rows, 0] = at
            field_start, quoting = at, BARE
            mode = _FIELD
            if byte in (_LINE_END, _RETURN):
                if keeps:
                    rows[num_rows, 1] = at
                    rows[num_rows, 2] = num_fields
                    num_rows += 1
                mode = _RETURNED if byte == _RETURN else _ROW
                at += 1
                continue
        if mode == _QUOTED:
            while at < end and data[at] != quote:
                at += 1
            if at < end:
                mode = _CLOSED
                at += 1
            continue
        if mode == _FIELD:
            if byte == _SPACE and skips_space:
                at += 1
                field_start = at
                continue
            if byte == quote:
                mode, quoting = _QUOTED, IN_QUOTES
                at += 1
                continue
            mode = _PLAIN
        is_end = byte == delimiter or byte in (_LINE_END, _RETURN)
        if not is_end:
            if mode == _CLOSED:
                quoting = WITH_QUOTES
                mode = _QUOTED if byte == quote else _PLAIN
            at += 1
            continue
        if keeps:
            trimmed = 1 if quoting == IN_QUOTES else 0
            fields[num_fields, 0] = field_start + trimmed
            fields[num_fields, 1] = at - trimmed
            fields[num_fields, 2] = quoting
            num_fields += 1
        if byte == delimiter:
            mode = _FIELD
        else:
            if keeps:
                rows[num_rows, 1] = at
                rows[num_rows, 2] = num_fields
                num_rows += 1
            mode = _RETURNED if byte == _RETURN else _ROW
        field_start, quoting = at + 1, BARE
        at += 1
    if keeps and mode not in (_ROW, _RETURNED):
        trimmed = 1 if quoting == IN_QUOTES and mode == _CLOSED else 0
        fields[num_fields, 0] = field_start + trimmed
        fields[num_fields, 1] = end - trimmed
        fields[num_fields, 2] = quoting
        num_fields += 1
        rows[num_rows, 1] = end
        rows[num_rows, 2] = num_fields
        num_rows += 1
    state[0] = mode
    return -1 - num_rows
