"""Many small files read as one cell: a hundred thousand of them would else be as many batches, and as many blocks.

Lines of JSON files are put one after another and decoded in one go, texts that are files of their own likewise: about
25 µs a file of half a kilobyte, if it is in the system's cache. What does not fit in there (a damaged stream, a file
that unpacks to more than a cell, any other format) is read by the file's own reader, and its batches are joined with
those around it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN, SPLIT, TEXT, TEXT_TYPE, make_origins
from gristmill.core.splits import TRAIN
from gristmill.steps.read.batches import build_batch
from gristmill.steps.read.cells import CELL_BYTES, CellBatch
from gristmill.steps.read.formats import JSON_FORMATS, file_format
from gristmill.steps.read.json_files.json_layout import find_elements_in
from gristmill.steps.read.json_files.json_lines import LINE_END, JsonLinesReader
from gristmill.steps.read.raw_cells.delimited_file import BYTE_ORDER_MARK, DelimitedFile, RawCell, read_unpacked_chunks
from gristmill.steps.read.source import open_reader
from gristmill.steps.read.split_column import add_splits
from gristmill.storage.compression import CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.core.records import QuarantinedRecord, SourceFile
    from gristmill.steps.read.read import Read

_BATCH_BYTES = 2 * CELL_BYTES


def read_small_files(read: Read, files: Iterable[SourceFile], schema: pa.Schema) -> Iterator[CellBatch]:
    """The records of small files in order, as one cell, or several where they are more than two cells of memory.

    Args:
        read: The source.
        files: Each is opened right after it is taken from here.
        schema: The source's schema, from `plan_schema`.
    """
    if SPLIT in schema.names:
        splits: dict[int, str] = {}
        inner = schema.remove(schema.get_field_index(SPLIT))
        for cell in read_small_files(read, _note_splits(files, splits), inner):
            yield add_splits(cell, schema, splits)
        return
    gathered: list[CellBatch] = []
    num_bytes = 0
    for cell in _cells(read, files, schema):
        if gathered and num_bytes + cell.batch.nbytes > _BATCH_BYTES:
            yield _join_cells(gathered)
            gathered, num_bytes = [], 0
        gathered.append(cell)
        num_bytes += cell.batch.nbytes
    if gathered:
        yield _join_cells(gathered)


def _note_splits(files: Iterable[SourceFile], splits: dict[int, str]) -> Iterator[SourceFile]:
    for file in files:
        splits[file.id] = file.split or TRAIN
        yield file


def _cells(read: Read, files: Iterable[SourceFile], schema: pa.Schema) -> Iterator[CellBatch]:
    contents: _GatheredFiles | None = None
    for file in files:
        if contents is None:
            contents = _make_gatherer(read, file, schema)
        data = None if contents is None else _read_small_file(file)
        if contents is not None and data is not None:
            if contents.num_bytes + len(data) > CELL_BYTES:
                yield contents.take()
            if contents.add(file, data):
                continue
        if contents is not None and contents.num_bytes:
            yield contents.take()
        yield from open_reader(read, file, schema).read_cells()
    if contents is not None and contents.num_bytes:
        yield contents.take()


def _join_cells(cells: list[CellBatch]) -> CellBatch:
    if len(cells) == 1:
        return cells[0]
    bad = [record for cell in cells for record in cell.quarantined]
    batch = pa.concat_batches([cell.batch for cell in cells])
    measures = sum((cell.counters for cell in cells), Counter[str]())
    return CellBatch(cells[0].cell, batch, sum(cell.num_blank for cell in cells), bad, measures)


def _read_small_file(file: SourceFile) -> bytes | None:
    """All of a file, unpacked; None if it is more than a cell or cannot be read to its end."""
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        with closing(read_unpacked_chunks(file.path)) as chunks:
            for chunk in chunks:
                pieces.append(chunk)
                num_bytes += len(chunk)
                if num_bytes > CELL_BYTES:
                    return None
    except CorruptStreamError:
        return None
    return b"".join(pieces)


class _GatheredFiles(Protocol):
    """The contents of some files, until they are decoded together."""

    num_bytes: int

    def add(self, file: SourceFile, data: bytes) -> bool:
        """Whether this was done; else the file needs its own reader."""

    def take(self) -> CellBatch:
        """The records of all that was added since the last time."""


def _make_gatherer(read: Read, file: SourceFile, schema: pa.Schema) -> _GatheredFiles | None:
    kind = file_format(file.path, read.format)
    if kind in JSON_FORMATS:
        return _GatheredLines(read, file, schema)
    return _GatheredTexts(read, schema) if kind == "text" and read.separator is None else None


class _GatheredLines:
    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema) -> None:
        cells = DelimitedFile(file, LINE_END, read.max_record_bytes)
        self._read = read
        self._reader = JsonLinesReader(read, cells, schema)
        self._clear()

    def add(self, file: SourceFile, data: bytes) -> bool:
        if file_format(file.path, self._read.format) == "json" and find_elements_in(self._read, file.path, data):
            return False
        mark = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
        self._files.append(file.id)
        self._starts.append(self.num_bytes)
        self._shifts.append(self.num_bytes - mark)
        lines = data[mark:] if mark else data
        if lines and not lines.endswith(LINE_END):
            lines += LINE_END
        self._pieces.append(lines)
        self.num_bytes += len(lines)
        return True

    def take(self) -> CellBatch:
        data = memoryview(b"".join(self._pieces))
        cell = self._reader.parse(RawCell(0, 0, data, is_terminated=True, num_left_out=0))
        place = cell.batch.schema.get_field_index(ORIGIN)
        positions = cell.batch.column(place).field("position").to_numpy().astype(np.int64)
        # Which file a line came from: the last one that begins at or before it.
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        files = pa.array(np.array(self._files, np.uint64)[numbers])
        positions -= np.array(self._shifts, np.int64)[numbers]
        column = make_origins(files, pa.array(positions, pa.uint64()))
        batch = cell.batch.set_column(place, cell.batch.schema.field(place), column)
        found = CellBatch(0, batch, cell.num_blank, [self._in_its_file(record) for record in cell.quarantined])
        self._clear()
        return found

    def _in_its_file(self, record: QuarantinedRecord) -> QuarantinedRecord:
        number = bisect_right(self._starts, record.position) - 1
        return replace(record, file=self._files[number], position=record.position - self._shifts[number])

    def _clear(self) -> None:
        self.num_bytes = 0
        self._files: list[int] = []
        self._starts: list[int] = []
        self._shifts: list[int] = []
        """What to take off from a place in the whole to have the place in the file."""
        self._pieces: list[bytes] = []


class _GatheredTexts:
    def __init__(self, read: Read, schema: pa.Schema) -> None:
        self._max_record_bytes = read.max_record_bytes
        self._schema = schema
        self._clear()

    def add(self, file: SourceFile, data: bytes) -> bool:
        text = data.removeprefix(BYTE_ORDER_MARK)
        if len(text) > self._max_record_bytes:
            return False
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return False
        self.num_bytes += len(data) + 1  # an empty file is something that was added, too
        if not text or text.isspace():
            self._num_blank += 1
        else:
            self._files.append(file.id)
            self._texts.append(decoded)
        return True

    def take(self) -> CellBatch:
        columns = {TEXT: pa.array(self._texts, TEXT_TYPE)}
        positions = np.zeros(len(self._texts), np.int64)
        batch = build_batch(self._schema, pa.array(self._files, pa.uint64()), positions, columns)
        found = CellBatch(0, batch, self._num_blank)
        self._clear()
        return found

    def _clear(self) -> None:
        self.num_bytes = 0
        self._num_blank = 0
        self._files: list[int] = []
        self._texts: list[str] = []
