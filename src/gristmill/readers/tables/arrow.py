"""Arrow IPC, file and stream. A file is a stream between two marks, so both are read the same way, except for files in
which only the footer has the columns, as polars writes them: these are read by their footer.

A cell is as many whole record batches as hold about 4 MiB; a larger batch is cut into cells of equal numbers of rows.
Local files are mapped into memory, so batches before a range cost only their headers, and pages are released after each
cell. Remote files are streams: for a range, everything before it is read too.

polars writes categories as dictionaries of string views, which pyarrow can neither make nor decode. Their values become
plain strings, so that no other module has to handle them.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, CellBatch, StreamDamage
from gristmill.readers.formats import advise_on_file
from gristmill.readers.tables.column_mapper import ColumnMapper
from gristmill.readers.tables.gristmill_dataset import TokenRowMapper
from gristmill.storage.files import open_input
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.read import Read


_FILE_MARK = b"ARROW1\0\0"
_TRAILER = struct.Struct("<i6s")
"""The end of a file: the size of the footer before it, and the mark."""
_MIN_EXPANSION, _MIN_EXPANDED_BYTES = 8, 64 << 20
_VALUE_BYTES = 8
"""What a value takes in addition to its content, or a number."""
MAX_ROW_BYTES = 1 << 30
"""Rows above this are not read: they are quarantined with their number."""


@dataclass(slots=True)
class _RowCell:
    """The rows of one cell, as parts of batches."""

    first_row: int
    parts: list[pa.RecordBatch] = field(default_factory=list)
    num_bytes: int = 0
    damage: StreamDamage | None = None

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.parts))


def open_file(part: FilePart, schema: pa.Schema) -> ArrowReader:
    """Open a file for reading."""
    return ArrowReader(part.read, part.file, schema, cell_bytes=part.cell_bytes)


def read_schemas(files: Sequence[SourceFile], sampled: Sequence[SourceFile]) -> list[pa.Schema]:  # noqa: ARG001
    """Return the columns of some files of a source."""
    return [read_arrow_schema(file.path) for file in sampled]


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
            num_bytes = batch.nbytes
            if is_expansion(bound := sum(map(bound_bytes, batch.columns)), num_bytes):
                num_bytes = bound
            if num_bytes <= self._cell_bytes:
                cell.parts.append(batch)
                cell.num_bytes += num_bytes
            else:
                if cell.parts:
                    yield cell
                    cell = _RowCell(cell.first_row + cell.num_rows)
                num_rows = max(1, len(batch) * self._cell_bytes // num_bytes)
                for start in range(0, len(batch), num_rows):
                    piece = batch.slice(start, num_rows)
                    yield _RowCell(cell.first_row + start, [piece], num_bytes * len(piece) // len(batch))
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
            quarantined.append(cell.damage.quarantine_rest(self._file.id, first_row))
        # Rows must be copied out of the map here: reading a mapped file that has shrunk kills the process.
        joined = pa.concat_batches(batches) if len(batches) > 1 else _copy(batches[0])
        return CellBatch(number, joined, 0, quarantined, counters)


def _make_mapper(
    read: Read, file: SourceFile, stored_schema: pa.Schema, planned: pa.Schema
) -> ColumnMapper | TokenRowMapper:
    is_own_tokens = read.format == "gristmill" and INPUT_IDS in planned.names
    return (
        TokenRowMapper(file, stored_schema, planned)
        if is_own_tokens
        else ColumnMapper(read, file, stored_schema, planned)
    )


class _IpcStream:
    """An open IPC stream, mapped if it is local."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.damage: StreamDamage | None = None
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
                    self._check_end()
                    return
                batch.validate()  # no buffer may be too short for its rows: `nbytes` and slices rely on it
                batch = remove_views(batch)
            except (pa.ArrowException, OSError) as error:
                num_unread = self._count_rest(self._start)
                if isinstance(self._reader, pa.RecordBatchFileReader):  # it has read the footer at the end
                    num_batches = self._reader.num_record_batches
                    num_unread = self._count_rest(0) * (num_batches - number) // num_batches
                self.damage = StreamDamage("truncated_stream", str(error), num_unread)
                return
            yield batch

    def _check_end(self) -> None:
        """Note the bytes after the end mark as damage, unless they are the footer of a file."""
        if isinstance(self._reader, pa.RecordBatchFileReader):
            return
        end = self._source.tell()
        num_unread = self._count_rest(end)
        if self._has_mark and num_unread >= _TRAILER.size:
            self._source.seek(end + num_unread - _TRAILER.size)
            footer_bytes, mark = _TRAILER.unpack(self._source.read(_TRAILER.size))
            num_unread -= footer_bytes + _TRAILER.size if mark == _FILE_MARK.rstrip(b"\0") else 0
        if num_unread > 0:
            message = f"the stream has an end mark {num_unread} bytes before its end; nothing after it was read"
            self.damage = StreamDamage("truncated_stream", message, num_unread)

    def _count_rest(self, start: int) -> int:
        size: int = self._source.seek(0, os.SEEK_END)
        return size - start

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
    row_bytes = sum(map(bound_bytes, batch.columns)) // max(1, len(batch))
    if row_bytes > MAX_ROW_BYTES:
        return f"a row may take {row_bytes} bytes"
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


def is_expansion(num_decoded: int, num_stored: int) -> bool:
    """Whether values take so much more memory than their file that cells must be cut by it.

    Ordinary columns of categories do not: their cells stay as large as the file says.
    """
    return num_decoded > max(_MIN_EXPANSION * num_stored, _MIN_EXPANDED_BYTES)


def bound_bytes(array: pa.Array) -> int:
    """Return the most bytes that the values of an array take when each is stored by itself.

    Values that are stored once and used many times make small files of huge columns: dictionaries, runs, and lists and
    strings that are views of the same bytes.
    """
    types, kind = pa.types, array.type
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return len(array) * (
            _VALUE_BYTES + find_widest(array.dictionary if types.is_dictionary(kind) else array.values)
        )
    if types.is_struct(kind):
        return sum(bound_bytes(array.field(index)) for index in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return len(array) * _VALUE_BYTES + bound_bytes(array.flatten())
    if types.is_map(kind):
        first, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(bound_bytes(part.slice(first, max(0, stop - first))) for part in (array.keys, array.items))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        num_values = max(0, pc.sum(array.sizes).as_py() or 0)
        return len(array) * _VALUE_BYTES + num_values * (_VALUE_BYTES + find_widest(array.values))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return len(array) * _VALUE_BYTES + int(_measure_views(array).sum())
    num_bytes: int = array.nbytes
    return num_bytes


def find_widest(values: pa.Array) -> int:
    """Return the size of the largest of some values, or more."""
    types, kind = pa.types, values.type
    if not len(values):
        return 0
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return int(_measure_views(values).max())
    if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return max(0, pc.max(pc.binary_length(values)).as_py() or 0)
    return bound_bytes(values) if types.is_nested(kind) or types.is_dictionary(kind) else _VALUE_BYTES


def _measure_views(views: pa.Array) -> NDArray[np.int64]:
    """Return the lengths of views of bytes: the first of the four numbers of each."""
    numbers = np.frombuffer(views.buffers()[1], np.int32)[4 * views.offset : 4 * (views.offset + len(views)) : 4]
    return np.maximum(numbers, 0).astype(np.int64)


_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def remove_views_from_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with dictionaries of views replaced by dictionaries of plain values.

    >>> remove_views_from_type(pa.dictionary(pa.uint32(), pa.string_view()))
    DictionaryType(dictionary<values=large_string, indices=uint32, ordered=0>)
    """
    types = pa.types
    if types.is_dictionary(kind) and kind.value_type in _PLAIN:
        return pa.dictionary(kind.index_type, _PLAIN[kind.value_type], kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(remove_views_from_type(field.type)) for field in kind])
    for test, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if test(kind):
            return make(kind.value_field.with_type(remove_views_from_type(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(remove_views_from_type(kind.value_type)), kind.list_size)
    return kind


def remove_views_from_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(remove_views_from_type(field.type)) for field in schema], schema.metadata)


def remove_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the columns of `remove_views_from_schema`."""
    schema = remove_views_from_schema(batch.schema)
    if schema.equals(batch.schema):
        return batch
    arrays = [_decode_views(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decode_views(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    column.validate(full=True)  # in a damaged file, views may point anywhere
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind.value_type))
    return pa.array(column.to_pylist(), kind)  # inside lists and objects, value by value
