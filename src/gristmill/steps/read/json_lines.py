r"""JSON lines: one object a line, each judged alone. About 300 MB/s a core.

Only "\n" ends a line; a "\r" before it is part of the line end. Blank lines are counted, not records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.records import RECORD, RECORD_TYPE, TEXT, TEXT_TYPE, BadRecord
from gristmill.steps.read.batches import build_batch, extra_columns, is_utf8
from gristmill.steps.read.cells import CellBatch
from gristmill.steps.read.json_fields import JsonFields
from gristmill.steps.read.records import CutRecords, cut_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.steps.read.read import Read
    from gristmill.steps.read.separated import RawCell, SeparatedFile

LINE_END = b"\n"
_BLANK = b" \t\r"
_RETURN = ord("\r")


class JsonLinesReader:
    """Reads a file of JSON lines cell by cell."""

    def __init__(self, read: Read, cells: SeparatedFile, schema: pa.Schema) -> None:
        self.can_cut = cells.can_cut
        self._read = read
        self._cells = cells
        self._schema = schema
        self._columns = extra_columns(schema)
        self._fields = JsonFields(read.text, self._columns)

    def cell_sizes(self) -> list[int]:
        return self._cells.cell_sizes()

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        for raw in self._cells.raw_cells(first, stop):
            yield self._parse(raw)

    def _parse(self, raw: RawCell) -> CellBatch:
        cut = cut_records(raw, self._cells.file.id, LINE_END, self._read.max_record_bytes)
        decode = self._fields.decode
        rows: list[Any] = []
        refused: list[tuple[int, Exception]] = []
        add = rows.append
        for index, line in enumerate(cut.records):
            try:
                add(decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                refused.append((index, error))
            except RecursionError:
                self._decode_deep(index, bytes(line), rows, refused)
        num_blank = self._set_aside(cut, refused) if refused else 0
        if raw.rest is not None:
            num_blank += self._add_rest(raw.rest, cut, rows)
        cut.bad.sort(key=lambda bad: bad.position)
        return CellBatch(raw.cell, self._batch(cut, rows), num_blank, cut.bad)

    def _decode_deep(self, index: int, line: bytes, rows: list[Any], refused: list[tuple[int, Exception]]) -> None:
        try:
            rows.append(self._fields.retry(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refused.append((index, error))

    def _set_aside(self, cut: CutRecords, refused: list[tuple[int, Exception]]) -> int:
        """Take the refused lines out of the records; count the blank ones."""
        num_blank = 0
        for index, error in refused:
            line, position = bytes(cut.records[index]), int(cut.positions[index])
            if not line.strip(_BLANK):
                num_blank += 1
            else:
                reason, message = self._fields.refusal(line, error)
                cut.bad.append(BadRecord(self._cells.file.id, position, 0, reason, message, line, len(line)))
        gone = {index for index, _ in refused}
        cut.positions = np.delete(cut.positions, list(gone))
        cut.records = [line for index, line in enumerate(cut.records) if index not in gone]
        return num_blank

    def _add_rest(self, rest: BadRecord, cut: CutRecords, rows: list[Any]) -> int:
        """A damaged stream may break off right behind a whole object: that one is used, the rest begins after it."""
        line = rest.raw or b""
        end = rest.position + rest.num_bytes
        is_blank = rest.raw is not None and not line.strip(_BLANK)
        if line and not is_blank and len(line) <= self._read.max_record_bytes and is_utf8(line):
            try:
                rows.append(self._fields.retry(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            else:
                cut.records.append(memoryview(line))
                cut.positions = np.append(cut.positions, rest.position)
                is_blank = False
                rest = replace(rest, position=end, raw=None, num_bytes=0)
        if is_blank:
            rest = replace(rest, position=end, raw=None, num_bytes=0)
        cut.bad.append(rest)
        return int(is_blank)

    def _batch(self, cut: CutRecords, rows: list[Any]) -> pa.RecordBatch:
        arrays = {TEXT: pa.array(self._fields.texts(rows), TEXT_TYPE)}
        for name, column_type in self._columns.items():
            arrays[name] = pa.array(self._fields.values(name, rows), column_type)
        if RECORD in self._schema.names:
            arrays[RECORD] = pa.array([_without_return(line) for line in cut.records], RECORD_TYPE)
        return build_batch(self._schema, self._cells.file.id, cut.positions, arrays)


def _without_return(line: memoryview) -> memoryview:
    return line[:-1] if line[-1] == _RETURN else line
