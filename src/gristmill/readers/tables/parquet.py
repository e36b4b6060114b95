"""Parquet: cells of a fixed number of rows, chosen from the footer so that one holds about 4 MiB.

Pages are read through a buffer of 1 MiB and decoded as they are needed, so a row group of any size takes the memory of
a cell. A range that begins inside a row group decodes that group from its start. A value that is stored once for many
rows takes more memory than the footer says: then the largest value of the dictionary decides how many rows a cell has.

Pages are one after the other in a row group, so a damaged one makes the rest of its group unreadable, from the batch of
rows that contains it: these rows are quarantined as `damaged`, with their number. Which rows these are depends on the
file alone, since batches are counted from the start of each group.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, CellBatch
from gristmill.readers.formats import advise_on_file
from gristmill.readers.tables.arrow import MAX_ROW_BYTES, find_widest, is_expansion
from gristmill.readers.tables.column_mapper import ColumnMapper
from gristmill.storage.files import open_input
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import BinaryIO

    import pyarrow.parquet as pq

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.read import Read

_BUFFER_BYTES = 1 << 20
_MARK = b"PAR1"
_MIN_RATIO = 64
_END_BYTES = 8
"""The size of the footer and the mark."""


def open_file(part: FilePart, schema: pa.Schema) -> ParquetReader:
    """Open a file for reading."""
    return ParquetReader(part.read, part.file, schema, cell_bytes=part.cell_bytes)


def read_schemas(files: Sequence[SourceFile], sampled: Sequence[SourceFile]) -> list[pa.Schema]:
    """Return the columns of some files of a source, from their footers; all local files must have one."""
    if find_protocol(files[0].path) is None:
        _check_footers(files)
    schemas = []
    for file in sampled:
        with open_input(file.path) as stream, open_parquet(stream, file.path) as parquet:
            schemas.append(parquet.schema_arrow)
    return schemas


def _check_footers(files: Iterable[SourceFile]) -> None:
    """Refuse a local file without a footer, such as an interrupted copy. One small read a file, so all are checked."""
    for file in files:
        with open_input(file.path) as stream:
            stream.seek(max(0, file.num_bytes - _END_BYTES))
            end = stream.read(_END_BYTES)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _MARK or size + _END_BYTES + len(_MARK) > file.num_bytes:
            raise UsageError(
                f"{file.path}: not a whole Parquet file: it has no footer", help=advise_on_file(file.path, "parquet")
            )


class ParquetReader:
    """A reader of a Parquet file, cell by cell."""

    can_cut = True

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema, *, cell_bytes: int = CELL_BYTES) -> None:
        self._file = file
        with open_input(file.path) as stream, open_parquet(stream, file.path) as parquet:
            metadata = parquet.metadata
            self._group_rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            self._columns = ColumnMapper(read, file, parquet.schema_arrow, schema)
            groups = range(metadata.num_row_groups)
            self._row_bytes = [_bound_row_bytes(parquet, stream, group, self._columns.top_level) for group in groups]
        self._num_rows = sum(self._group_rows)
        self._cell_rows = max(1, self._num_rows * cell_bytes // max(1, num_bytes))
        if row_bytes := max(self._row_bytes, default=0):
            self._cell_rows = max(1, min(self._cell_rows, cell_bytes // row_bytes))

    def cell_sizes(self) -> list[int]:
        num_cells = -(-self._num_rows // self._cell_rows)
        share, rest = divmod(self._file.num_bytes, max(1, num_cells))
        return [share + (cell < rest) for cell in range(num_cells)]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        last = -(-self._num_rows // self._cell_rows)
        stop = last if stop is None else min(stop, last)
        if first >= stop:
            return
        runs = self._runs(first * self._cell_rows, min(stop * self._cell_rows, self._num_rows))
        building: list[_RowRun] = []
        cell = first
        for run in _cut_at_cells(runs, self._cell_rows):
            if run.first_row // self._cell_rows > cell:
                yield self._read_cell(cell, building)
                building, cell = [], cell + 1
            building.append(run)
        yield self._read_cell(cell, building)

    def _read_cell(self, number: int, runs: list[_RowRun]) -> CellBatch:
        batches: list[pa.RecordBatch] = []
        quarantined: list[QuarantinedRecord] = []
        counters: Counter[str] = Counter()
        for run in runs:
            if run.rows is None:
                message = f"rows {run.first_row} to {run.first_row + run.num_rows - 1} cannot be read: {run.damage}"
                lost = QuarantinedRecord(self._file.id, run.first_row, 0, "damaged", message, num_records=run.num_rows)
                quarantined.append(lost)
            else:
                batch, quarantined_rows, counts = self._columns.batch(run.rows, run.first_row)
                batches.append(batch)
                quarantined += quarantined_rows
                counters.update(counts)
        if len(batches) != 1:
            batches = [pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], self._columns.planned)]
        return CellBatch(number, batches[0], 0, quarantined, counters)

    def _runs(self, start: int, stop: int) -> Iterator[_RowRun]:
        """Yield the rows from `start` to `stop`, in runs of one row group each."""
        with open_input(self._file.path) as stream, open_parquet(stream, self._file.path) as parquet:
            group_start = 0
            for group, num_rows in enumerate(self._group_rows):
                if start < group_start + num_rows and group_start < stop:
                    for run in self._group_runs(parquet, group, group_start):
                        if (piece := run.between(start, stop)) is not None:
                            yield piece
                        if run.first_row + run.num_rows >= stop:
                            return
                group_start += num_rows

    def _group_runs(self, parquet: pq.ParquetFile, group: int, row: int) -> Iterator[_RowRun]:
        end = row + self._group_rows[group]
        if self._row_bytes[group] > MAX_ROW_BYTES:
            yield _RowRun(row, end - row, damage=f"a row may take {self._row_bytes[group]} bytes")
            return
        batches = parquet.iter_batches(
            batch_size=self._cell_rows, row_groups=[group], columns=self._columns.top_level, use_threads=False
        )
        while row < end:
            try:
                batch = next(batches)
            except StopIteration:
                yield _RowRun(row, end - row, damage="the row group ends before them")
                return
            except (pa.ArrowException, OSError) as error:
                # About the content Arrow raises a bare OSError, about a file one with a number or a subclass.
                if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
                    error.add_note(f"while reading {self._file.path}")
                    raise
                yield _RowRun(row, end - row, damage=str(error))
                return
            yield _RowRun(row, len(batch), batch)
            row += len(batch)


@dataclass(frozen=True, slots=True)
class _RowRun:
    """Consecutive rows of one row group, or the damage that makes them unreadable."""

    first_row: int
    num_rows: int
    rows: pa.RecordBatch | None = None
    damage: str = ""

    def between(self, start: int, stop: int) -> _RowRun | None:
        """Return the part of the run in a range of rows."""
        first, last = max(self.first_row, start), min(self.first_row + self.num_rows, stop)
        if first >= last:
            return None
        rows = self.rows.slice(first - self.first_row, last - first) if self.rows is not None else None
        return _RowRun(first, last - first, rows, self.damage)


def _cut_at_cells(runs: Iterator[_RowRun], cell_rows: int) -> Iterator[_RowRun]:
    """Cut runs at the borders of cells."""
    for run in runs:
        for border in range(run.first_row // cell_rows * cell_rows, run.first_row + run.num_rows, cell_rows):
            if (piece := run.between(border, border + cell_rows)) is not None:
                yield piece


def _bound_row_bytes(parquet: pq.ParquetFile, stream: BinaryIO, group: int, names: Collection[str]) -> int:
    """Return the most bytes that a row of a group takes in memory, on average; 0 if the footer says about that.

    A value that is stored once may be in a million rows: it is in the dictionary, which is read first of all.
    """
    metadata = parquet.metadata.row_group(group)
    num_bytes = 0
    for index in range(metadata.num_columns):
        column = metadata.column(index)
        path = column.path_in_schema
        if not any(path == name or path.startswith(f"{name}.") for name in names):
            continue
        value_bytes = max(8, parquet.schema.column(index).length or 0)
        # The footer may say too little.
        most = max(column.total_uncompressed_size, _MIN_RATIO * column.total_compressed_size)
        if column.has_dictionary_page and is_expansion(column.num_values * most, metadata.total_byte_size):
            value_bytes += min(most, _find_widest_in_dictionary(parquet, stream, group, path))
        num_bytes += column.num_values * value_bytes
    is_ordinary = not is_expansion(num_bytes, metadata.total_byte_size)
    return 0 if is_ordinary else num_bytes // max(1, metadata.num_rows)


def _find_widest_in_dictionary(parquet: pq.ParquetFile, stream: BinaryIO, group: int, path: str) -> int:
    """Return the size of the largest value in the dictionary of a column; more than any if it cannot be known."""
    import pyarrow.parquet as pq  # noqa: PLC0415  (as below)

    try:
        file = pq.ParquetFile(
            stream, metadata=parquet.metadata, read_dictionary=[path], buffer_size=_BUFFER_BYTES, pre_buffer=False
        )
        batches = file.iter_batches(batch_size=1, row_groups=[group], columns=[path], use_threads=False)
        values = next(batches).column(0)
    except (StopIteration, pa.ArrowException, OSError):  # damaged: told when the rows are read
        return 0
    while pa.types.is_nested(values.type):
        values = values.field(0) if pa.types.is_struct(values.type) else values.values
    is_known = pa.types.is_dictionary(values.type) and len(values.dictionary)
    return find_widest(values.dictionary) if is_known else sys.maxsize


def open_parquet(stream: BinaryIO, path: str) -> pq.ParquetFile:
    """Open a Parquet file; `path` names it in errors."""
    import pyarrow.parquet as pq  # noqa: PLC0415  (it also loads the clients of object stores: 60 ms)

    try:
        return pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a Parquet file: {error}", help=advise_on_file(path, "parquet")) from error
