"""Many small files read as one cell: otherwise, a hundred thousand files would be as many batches and blocks.

Lines of JSON files are joined and decoded in one go, and so are files that are one text each: about 25 µs a file of
half a kilobyte, if it is in the system's cache. Other files (a damaged stream, a file that unpacks to more than a cell,
any other format) are read by their own reader, and their batches are joined with those around them.
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
from gristmill.readers.cells import CELL_BYTES, CellBatch, build_batch
from gristmill.readers.formats import file_format
from gristmill.readers.source import add_splits, open_reader
from gristmill.readers.texts.delimited_file import BYTE_ORDER_MARK, DelimitedFile, RawCell, read_unpacked_chunks
from gristmill.readers.texts.json_array import find_elements_in
from gristmill.readers.texts.json_lines import LINE_END, JsonLinesReader
from gristmill.storage.codecs import CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.core.records import QuarantinedRecord, SourceFile
    from gristmill.readers.read import Read


def read_small_files(
    read: Read, files: Iterable[SourceFile], schema: pa.Schema, batch_bytes: int = 2 * CELL_BYTES
) -> Iterator[CellBatch]:
    """Yield the records of small files in order, as one cell, or as several if they take more than `batch_bytes`.

    Args:
        read: The source.
        files: The files; each is opened right after it is taken from the iterable.
        schema: The source's schema, from `plan_schema`.
        batch_bytes: The memory of a cell, unless one file alone takes more.
    """
    if SPLIT in schema.names:
        splits: dict[int, str] = {}
        inner = schema.remove(schema.get_field_index(SPLIT))
        for cell in read_small_files(read, _note_splits(files, splits), inner, batch_bytes):
            yield add_splits(cell, schema, splits)
        return
    gathered: list[CellBatch] = []
    num_bytes = 0
    for cell in _cells(read, files, schema):
        if gathered and num_bytes + cell.batch.nbytes > batch_bytes:
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
    quarantined = [record for cell in cells for record in cell.quarantined]
    batch = pa.concat_batches([cell.batch for cell in cells])
    counters = sum((cell.counters for cell in cells), Counter[str]())
    return CellBatch(cells[0].cell, batch, sum(cell.num_blank for cell in cells), quarantined, counters)


def _read_small_file(file: SourceFile) -> bytes | None:
    """Return all of a file, unpacked; None if it is more than a cell or cannot be read to its end."""
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
    """The contents of several files, to be decoded together."""

    num_bytes: int

    def add(self, file: SourceFile, data: bytes) -> bool:
        """Add a file; returns whether it was added, or needs its own reader."""

    def take(self) -> CellBatch:
        """Return the records of all files added since the last call."""


def _make_gatherer(read: Read, file: SourceFile, schema: pa.Schema) -> _GatheredFiles | None:
    kind = file_format(file.path, read.format)
    if kind in ("jsonl", "json"):
        return _GatheredLines(read, file, schema)
    if kind == "files":
        from gristmill.readers.sample_folder import SampleBuilder  # noqa: PLC0415

        return SampleBuilder(read, schema)
    return _GatheredTexts(read, schema) if kind == "text" and read.separator is None else None


class _GatheredLines:
    """The lines of several files, joined; each record gets its own file and position back after decoding."""

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
        origin_index = cell.batch.schema.get_field_index(ORIGIN)
        positions = cell.batch.column(origin_index).field("position").to_numpy().astype(np.int64)
        # A line is from the last file that begins at or before it.
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        files = pa.array(np.array(self._files, np.uint64)[numbers])
        positions -= np.array(self._shifts, np.int64)[numbers]
        column = make_origins(files, pa.array(positions, pa.uint64()))
        batch = cell.batch.set_column(origin_index, cell.batch.schema.field(origin_index), column)
        quarantined = [self._restore_origin(record) for record in cell.quarantined]
        self._clear()
        return CellBatch(0, batch, cell.num_blank, quarantined)

    def _restore_origin(self, record: QuarantinedRecord) -> QuarantinedRecord:
        number = bisect_right(self._starts, record.position) - 1
        return replace(record, file=self._files[number], position=record.position - self._shifts[number])

    def _clear(self) -> None:
        self.num_bytes = 0
        self._files: list[int] = []
        self._starts: list[int] = []
        self._shifts: list[int] = []
        """For each file, what to subtract from a position in the joined lines to get the position in the file."""
        self._pieces: list[bytes] = []


class _GatheredTexts:
    """The texts of several files, each of which is one document."""

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
        self.num_bytes += len(data) + 1  # 1 for an empty file too: `num_bytes` tells whether any file was added
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
        cell = CellBatch(0, batch, self._num_blank)
        self._clear()
        return cell

    def _clear(self) -> None:
        self.num_bytes = 0
        self._num_blank = 0
        self._files: list[int] = []
        self._texts: list[str] = []
