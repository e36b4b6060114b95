"""Plain text: one document a file, or one between each two separators. The text is kept byte for byte.

Documents of white space only are counted as blank.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.records import RECORD_TYPE, TEXT, TEXT_TYPE, QuarantinedRecord
from gristmill.readers.cells import CellBatch, StreamDamage, build_batch, is_utf8
from gristmill.readers.field_types import PlannedColumns
from gristmill.readers.texts.delimited_file import BYTE_ORDER_MARK, DelimitedFile, cut_records, read_unpacked_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.field_types import WantedColumns
    from gristmill.readers.read import Read
    from gristmill.readers.texts.delimited_file import RawCell


def open_file(part: FilePart, schema: pa.Schema) -> DelimitedTextReader | WholeTextReader:
    """Open a file for reading."""
    if part.read.separator is None:
        return WholeTextReader(part.read, part.file, schema)
    return DelimitedTextReader(part.read, open_cells(part), schema)


def open_cells(part: FilePart) -> DelimitedFile:
    """Open the plain bytes of the cells of a file."""
    separator = "\n" if part.read.separator is None else part.read.separator
    return DelimitedFile(part.file, separator.encode(), part.read.max_record_bytes, part.piece, part.cell_bytes)


def plan_columns(read: Read, files: Sequence[SourceFile], wanted: WantedColumns) -> PlannedColumns:  # noqa: ARG001
    """Plan the columns of a source."""
    if read.columns:
        raise UsageError("columns: plain text has none", help="leave `columns` out")
    return PlannedColumns({})


class DelimitedTextReader:
    """Reads documents between separators, cell by cell."""

    def __init__(self, read: Read, cells: DelimitedFile, schema: pa.Schema) -> None:
        self.can_cut = cells.can_cut
        self._read = read
        self._cells = cells
        self._schema = schema

    def cell_sizes(self) -> list[int]:
        return self._cells.cell_sizes()

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        for raw in self._cells.raw_cells(first, stop):
            yield self._parse(raw)

    def _parse(self, raw: RawCell) -> CellBatch:
        file = self._cells.file
        cut = cut_records(raw, file.id, self._cells.separator, self._read.max_record_bytes)
        if raw.rest is not None:
            # A truncated document looks like a whole one, so the last one is quarantined with the rest.
            cut.quarantined.append(raw.rest)
        texts = [bytes(text) for text in cut]
        rows = [index for index, text in enumerate(texts) if text and not text.isspace()]
        num_blank = len(texts) - len(rows)
        column = pa.array([texts[index] for index in rows], RECORD_TYPE).cast(TEXT_TYPE)
        batch = build_batch(self._schema, file.id, cut.positions[rows], {TEXT: column})
        cut.quarantined.sort(key=lambda record: record.position)
        return CellBatch(raw.cell, batch, num_blank, cut.quarantined)


class WholeTextReader:
    """Reads a file as one document: one cell of any size."""

    can_cut = True

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema) -> None:
        self._max_record_bytes = read.max_record_bytes
        self._file = file
        self._schema = schema

    def cell_sizes(self) -> list[int]:
        return [self._file.num_bytes]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        if first > 0 or stop == 0:
            return
        data, num_bytes, damage = self._load()
        texts: list[bytes] = []
        quarantined: list[QuarantinedRecord] = []
        if damage is not None:
            record = self._quarantine(damage.reason, damage.message, data, num_bytes)
            quarantined.append(replace(record, num_bytes=num_bytes + damage.num_unread, is_unread=True))
        elif num_bytes > self._max_record_bytes:
            message = f"{num_bytes} bytes, more than max_record_bytes ({self._max_record_bytes})"
            quarantined.append(self._quarantine("too_large", message, None, num_bytes))
        elif not is_utf8(data):
            quarantined.append(self._quarantine("invalid_utf8", "the file is not UTF-8", data, num_bytes))
        elif data and not data.isspace():
            texts.append(data)
        column = pa.array(texts, RECORD_TYPE).cast(TEXT_TYPE)
        batch = build_batch(self._schema, self._file.id, np.zeros(len(texts), np.int64), {TEXT: column})
        yield CellBatch(0, batch, 1 - len(texts) - len(quarantined), quarantined)

    def _load(self) -> tuple[bytes, int, StreamDamage | None]:
        """Return the document, or its beginning if it is too large; its size; and the damage of its stream."""
        data = bytearray()
        num_bytes = 0
        damage = None
        try:
            with closing(read_unpacked_chunks(self._file.path)) as chunks:
                for chunk in chunks:
                    num_bytes += len(chunk)
                    if num_bytes <= self._max_record_bytes:
                        data += chunk
        except CorruptStreamError as error:
            damage = StreamDamage.from_error(error)
        mark = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
        return bytes(data[mark:]), num_bytes - mark, damage

    def _quarantine(self, reason: str, message: str, raw: bytes | None, num_bytes: int) -> QuarantinedRecord:
        is_whole = raw is not None and len(raw) == num_bytes
        return QuarantinedRecord(self._file.id, 0, 0, reason, message, raw if is_whole else None, num_bytes)
