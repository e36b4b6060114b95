r"""JSON lines: one object a line; a bad line affects no other. About 300 MB/s a core.

Only "\n" ends a line; a "\r" before it is part of the line end. Blank lines are counted and are not records.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.json_values import NAN_AS_NULL
from gristmill.core.records import RECORD, RECORD_TYPE, TEXT, TEXT_TYPE, QuarantinedRecord, Texts
from gristmill.readers.cells import CellBatch, build_batch, extra_columns, is_utf8
from gristmill.readers.texts.delimited_file import BYTE_ORDER_MARK, CutRecords, DelimitedFile, cut_records, read_head
from gristmill.readers.texts.json_fields import JsonFields
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.read import Read
    from gristmill.readers.texts.delimited_file import RawCell, RawCells


LINE_END = b"\n"
_BLANK = b" \t\r"
_RETURN = ord("\r")
_FROM_PYTHON = "/.gristmill/records/"
"""Where a run keeps records from Python; a plan keeps some in memory."""
_NUM_NAN = re.compile(rb',"\\u0000nan":([0-9]+)(?=}\r?(?:\n|$))')
"""`NUM_NAN` as it is written in a line by `encode_json_line`."""


def is_from_python(path: str) -> bool:
    """Tell whether a file holds records from Python, whose lines are not the records as they are written out."""
    return _FROM_PYTHON in path or find_protocol(path) == "memory"


def open_file(part: FilePart, schema: pa.Schema) -> JsonLinesReader:
    """Open a file for reading."""
    return JsonLinesReader(part.read, open_cells(part), schema)


def open_cells(part: FilePart) -> DelimitedFile:
    """Open the plain bytes of the cells of a file."""
    return DelimitedFile(part.file, LINE_END, part.read.max_record_bytes, part.piece, part.cell_bytes)


def sample_records(read: Read, file: SourceFile, most: int) -> list[bytes]:  # noqa: ARG001  (as for all formats)
    """Return the records in the first bytes of a file."""
    data = read_head(file.path, 0, LINE_END, most)
    end = data.find(LINE_END, most)
    return data[: end if end >= 0 else len(data)].removeprefix(BYTE_ORDER_MARK).split(LINE_END)


class JsonLinesReader:
    """A reader of a file of JSON lines, cell by cell."""

    def __init__(self, read: Read, cells: RawCells, schema: pa.Schema) -> None:
        self.can_cut = cells.can_cut
        self._read = read
        self._cells = cells
        self._schema = schema
        self._keeps_record = RECORD in schema.names
        self._columns = extra_columns(schema)
        self._has_text = TEXT in schema.names
        self._is_from_python = is_from_python(cells.file.path)
        self._fields = JsonFields(read.text if self._has_text else None, self._columns)

    def cell_sizes(self) -> list[int]:
        return self._cells.cell_sizes()

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        for raw in self._cells.raw_cells(first, stop):
            yield self.parse(raw)

    def parse(self, raw: RawCell) -> CellBatch:
        """Decode the records of a raw cell. Their texts stay strings, except at a damaged end."""
        keeps_strings = self._has_text and raw.rest is None
        cut = self._cut_cell(raw)
        refused: list[tuple[int, Exception]] = []
        rows = self._decode_together(cut)
        if rows is None:
            rows = self._decode_each(cut, refused)
        num_blank = self._quarantine_refused(cut, refused)
        records = self._records(cut) if self._keeps_record else None
        counters: Counter[str] = Counter()
        if self._is_from_python:
            counters[NAN_AS_NULL] = sum(map(int, _NUM_NAN.findall(raw.data)))
            if counters[NAN_AS_NULL] and records is not None:
                records = pa.array([_NUM_NAN.sub(b"", line) for line in records.to_pylist()], RECORD_TYPE)
        columns = self._build_columns(rows, records, has_text=self._has_text and not keeps_strings)
        schema = self._schema.remove(self._schema.get_field_index(TEXT)) if keeps_strings else self._schema
        batch = build_batch(schema, self._cells.file.id, cut.positions, columns)
        if raw.rest is not None:
            batch, num_more = self._account_for_rest(raw.rest, batch, cut.quarantined)
            num_blank += num_more
        cut.quarantined.sort(key=lambda record: record.position)
        texts = Texts(self._fields.texts(rows), self._schema) if keeps_strings else None
        return CellBatch(raw.cell, batch, num_blank, cut.quarantined, +counters, texts)

    def _cut_cell(self, raw: RawCell) -> CutRecords:
        return cut_records(raw, self._cells.file.id, LINE_END, self._read.max_record_bytes)

    def _records(self, cut: CutRecords) -> pa.Array:
        return cut.join_records(strip=_RETURN)

    def _as_line(self, record: bytes) -> bytes:
        """Return a record in the form in which it is kept."""
        return record.removesuffix(b"\r")

    def _decode_together(self, cut: CutRecords) -> list[Any] | None:
        """Decode all lines in one call, if that gives the same as decoding each alone; else return None.

        msgspec accepts several objects on a line, and an object over several lines. But if every line begins with "{"
        and ends with "}", no object can extend over two lines: inside an object "{" never follows "}". Then as many
        objects as lines means one on each line.
        """
        if not len(cut) or cut.quarantined or not cut.are_enclosed(b"{", b"}"):
            return None
        try:
            rows = self._fields.decode_lines(cut.raw.data[cut.starts[0] : cut.stops[-1]])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return rows if len(rows) == len(cut) else None

    def _decode_each(self, cut: CutRecords, refused: list[tuple[int, Exception]]) -> list[Any]:
        decode = self._fields.decode
        rows: list[Any] = []
        add = rows.append
        for index, line in enumerate(cut):
            try:
                add(decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                refused.append((index, error.with_traceback(None)))  # a traceback would keep the cell in memory
            except RecursionError:
                self._decode_deep(index, bytes(line), rows, refused)
        return rows

    def _decode_deep(self, index: int, line: bytes, rows: list[Any], refused: list[tuple[int, Exception]]) -> None:
        try:
            rows.append(self._fields.retry(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refused.append((index, error))

    def _quarantine_refused(self, cut: CutRecords, refused: list[tuple[int, Exception]]) -> int:
        """Quarantine the refused lines; return how many of them are blank."""
        if not refused:
            return 0
        num_blank = 0
        positions = cut.positions
        for index, error in refused:
            line = cut[index]
            if not line.strip(_BLANK):
                num_blank += 1
            else:
                reason, message = self._fields.refusal(line, error)
                position = int(positions[index])
                is_malformed = reason in ("invalid_json", "invalid_utf8")
                record = QuarantinedRecord(
                    self._cells.file.id, position, 0, reason, message, line, len(line), is_malformed=is_malformed
                )
                cut.quarantined.append(record)
        cut.drop([index for index, _ in refused])
        return num_blank

    def _build_columns(self, rows: list[Any], records: pa.Array | None, *, has_text: bool) -> dict[str, pa.Array]:
        arrays = {TEXT: pa.array(self._fields.texts(rows), TEXT_TYPE)} if has_text else {}
        for name, column_type in self._columns.items():
            arrays[name] = pa.array(self._fields.values(name, rows), column_type)
        if records is not None:
            arrays[RECORD] = records
        return arrays

    def _account_for_rest(
        self, rest: QuarantinedRecord, batch: pa.RecordBatch, quarantined: list[QuarantinedRecord]
    ) -> tuple[pa.RecordBatch, int]:
        """Account for the rest of a damaged stream.

        The stream may end right after a whole object, or in a blank line: then the rest begins after that.
        """
        line = rest.raw or b""
        size = len(line)
        after = replace(rest, position=rest.position + size, raw=None, num_bytes=rest.num_bytes - size)
        if rest.raw is not None and not line.strip(_BLANK):
            quarantined.append(after)
            return batch, 1
        try:
            if not line or len(line) > self._read.max_record_bytes or not is_utf8(line):
                raise msgspec.DecodeError
            record = pa.array([self._as_line(line)], RECORD_TYPE) if self._keeps_record else None
            columns = self._build_columns([self._fields.retry(line)], record, has_text=self._has_text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            quarantined.append(rest)
            return batch, 0
        quarantined.append(after)
        last = build_batch(self._schema, self._cells.file.id, np.array([rest.position]), columns)
        return pa.concat_batches([batch, last]), 0
