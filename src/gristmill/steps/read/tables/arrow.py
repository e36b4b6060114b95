"""Arrow IPC, file and stream. A file is a stream between two marks, so both are read the same way, except for files in
which only the footer has the columns, as polars writes them: these are read by their footer.

A cell is as many whole record batches as hold about 4 MiB; a larger batch is cut into cells of equal numbers of rows.
Local files are mapped into memory, so batches before a range cost only their headers, and pages are released after each
cell. Remote files are streams: for a range, everything before it is read too.
"""

from __future__ import annotations

import itertools
import mmap
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, QuarantinedRecord
from gristmill.steps.read.cells import CELL_BYTES, CellBatch
from gristmill.steps.read.foreign_files import advise_on_file
from gristmill.steps.read.tables.column_mapper import ColumnMapper
from gristmill.steps.read.tables.string_views import remove_views, remove_views_from_schema
from gristmill.steps.read.tables.token_documents import TokenRowMapper
from gristmill.storage.files import open_input
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read

_FILE_MARK = b"ARROW1\0\0"


@dataclass(slots=True)
class _RowCell:
    """The rows of one cell, as parts of batches."""

    first_row: int
    parts: list[pa.RecordBatch] = field(default_factory=list)
    num_bytes: int = 0
    damage: str | None = None

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.parts))


def read_arrow_schema(path: str) -> pa.Schema:
    """Return the columns of a file, from its first message."""
    with ExitStack() as stack:
        return _IpcStream(path, stack).schema


class ArrowReader:
    """A reader of an Arrow IPC file or stream, cell by cell."""

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema, *, cell_bytes: int = CELL_BYTES) -> None:
        self._file = file
        self._cell_bytes = cell_bytes
        self._columns = _make_mapper(read, file, read_arrow_schema(file.path), schema)
        self.can_cut = find_protocol(file.path) is None

    def cell_sizes(self) -> list[int]:
        with ExitStack() as stack:
            return [cell.num_bytes for cell in self._cut_row_cells(_IpcStream(self._file.path, stack))]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        with ExitStack() as stack:
            stream = _IpcStream(self._file.path, stack)
            for number, cell in enumerate(self._cut_row_cells(stream)):
                if stop is not None and number >= stop:
                    return
                if number >= first:
                    yield self._map_cell(number, cell, stream.schema)
                    stream.release_pages()

    def _cut_row_cells(self, stream: _IpcStream) -> Iterator[_RowCell]:
        cell = _RowCell(0)
        for batch in stream.batches():
            if batch.nbytes <= self._cell_bytes:
                cell.parts.append(batch)
                cell.num_bytes += batch.nbytes
            else:
                if cell.parts:
                    yield cell
                    cell = _RowCell(cell.first_row + cell.num_rows)
                num_rows = max(1, len(batch) * self._cell_bytes // batch.nbytes)
                for start in range(0, len(batch), num_rows):
                    piece = batch.slice(start, num_rows)
                    yield _RowCell(cell.first_row + start, [piece], batch.nbytes * len(piece) // len(batch))
                cell = _RowCell(cell.first_row + len(batch))
            if cell.num_bytes >= self._cell_bytes:
                yield cell
                cell = _RowCell(cell.first_row + cell.num_rows)
        cell.damage = stream.damage
        if cell.parts or cell.damage:
            yield cell

    def _map_cell(self, number: int, cell: _RowCell, stored_schema: pa.Schema) -> CellBatch:
        indexes = [place for place, name in enumerate(stored_schema.names) if name in self._columns.top_level]
        empty = pa.RecordBatch.from_pylist([], pa.schema([stored_schema.field(index) for index in indexes]))
        batches, quarantined, counters = [], list[QuarantinedRecord](), Counter[str]()
        first_row = cell.first_row
        for piece in [piece.select(indexes) for piece in cell.parts] or [empty]:
            damage = _find_damage(piece)
            if damage is not None:
                message = f"rows {first_row} to {first_row + len(piece) - 1} cannot be read: {damage}"
                lost = QuarantinedRecord(self._file.id, first_row, 0, "damaged", message, num_records=len(piece))
                quarantined.append(lost)
            batch, quarantined_rows, counts = self._columns.batch(piece if damage is None else empty, first_row)
            batches.append(batch)
            quarantined += quarantined_rows
            counters.update(counts)
            first_row += len(piece)
        if cell.damage:
            quarantined.append(QuarantinedRecord(self._file.id, first_row, 0, "truncated_stream", cell.damage))
        # Rows must be copied out of the map here: reading a mapped file that has shrunk kills the process.
        joined = pa.concat_batches(batches) if len(batches) > 1 else _copy(batches[0])
        return CellBatch(number, joined, 0, quarantined, counters)


def _make_mapper(
    read: Read, file: SourceFile, stored_schema: pa.Schema, planned: pa.Schema
) -> ColumnMapper | TokenRowMapper:
    is_tokenized = INPUT_IDS in planned.names
    return (
        TokenRowMapper(file, stored_schema, planned)
        if is_tokenized
        else ColumnMapper(read, file, stored_schema, planned)
    )


class _IpcStream:
    """An open IPC stream, mapped if it is local."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.damage: str | None = None
        stream = stack.enter_context(open_input(path))
        self._map: mmap.mmap | None = None
        self._start = self._released = 0
        try:
            if find_protocol(path) is None:
                self._map = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
                self._source = pa.BufferReader(pa.py_buffer(self._map))
            else:
                self._source = stack.enter_context(pa.PythonFile(stream, mode="r"))
            self._has_mark = self._source.read(len(_FILE_MARK)) == _FILE_MARK
            self._reader = self._open()
        except (pa.ArrowException, ValueError, OSError) as error:
            raise UsageError(f"{path}: not an Arrow file: {error}", help=advise_on_file(path, "arrow")) from error
        self.schema = remove_views_from_schema(self._reader.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches until the end, or until the file is damaged; then `damage` is set."""
        for number in itertools.count():
            self._start = self._source.tell()
            try:
                batch = self._read_next(number)
                if batch is None:
                    return
                batch.validate()  # no buffer may be too short for its rows: `nbytes` and slices rely on it
                batch = remove_views(batch)
            except (pa.ArrowException, OSError) as error:
                self.damage = str(error)
                return
            yield batch

    def _open(self) -> pa.RecordBatchStreamReader | pa.RecordBatchFileReader:
        """Open the stream inside a file, which needs no footer, so that the beginning of a truncated file is read."""
        self._source.seek(len(_FILE_MARK) if self._has_mark else 0)
        try:
            return pa.ipc.open_stream(self._source)
        except (pa.ArrowException, OSError):
            if not self._has_mark:
                raise
            return pa.ipc.open_file(self._source)

    def _read_next(self, number: int) -> pa.RecordBatch | None:
        if isinstance(self._reader, pa.RecordBatchFileReader):
            return self._reader.get_batch(number) if number < self._reader.num_record_batches else None
        return next(self._reader, None)

    def release_pages(self) -> None:
        """Release the pages read so far. The batch in use may be read again: its pages are then loaded again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            by_footer = isinstance(self._reader, pa.RecordBatchFileReader)
            end = len(self._map) if by_footer else self._source.tell()
            start = self._released // mmap.PAGESIZE * mmap.PAGESIZE
            if end > start:
                self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
            self._released = 0 if by_footer else min(self._start, end)


def _find_damage(batch: pa.RecordBatch) -> str | None:
    """Return why the columns cannot be used, such as offsets out of bounds. Text that is not UTF-8 is no damage."""
    try:
        for column in batch.columns:
            is_text = column.type in (pa.string(), pa.large_string())
            plain = column.cast(pa.binary() if column.type == pa.string() else pa.large_binary()) if is_text else column
            plain.validate(full=True)
    except pa.ArrowException as error:
        return str(error)
    return None


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()
