"""Parquet: cells of a fixed number of rows, chosen from the footer so that one holds about 4 MiB.

Pages are read through a buffer of 1 MiB and decoded as they are needed, so a row group of any size takes the memory of
a cell. A range that begins inside a row group decodes that group from its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.core.errors import GristmillError, UsageError
from gristmill.steps.read.cells import CELL_BYTES, CellBatch
from gristmill.steps.read.columns import ColumnMapper
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read

_BUFFER_BYTES = 1 << 20


def parquet_schema(path: str) -> pa.Schema:
    """The columns of a file, from its footer."""
    with open_input(path) as stream, _open(stream, path) as parquet:
        return parquet.schema_arrow


class ParquetReader:
    """Reads a Parquet file cell by cell."""

    can_cut = True

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema, *, cell_bytes: int = CELL_BYTES) -> None:
        self._file = file
        with open_input(file.path) as stream, _open(stream, file.path) as parquet:
            metadata = parquet.metadata
            self._group_rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            self._columns = ColumnMapper(read, file, parquet.schema_arrow, schema)
        self._num_rows = sum(self._group_rows)
        self._cell_rows = max(1, self._num_rows * cell_bytes // max(1, num_bytes))

    def cell_sizes(self) -> list[int]:
        num_cells = -(-self._num_rows // self._cell_rows)
        share, rest = divmod(self._file.num_bytes, max(1, num_cells))
        return [share + (cell < rest) for cell in range(num_cells)]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        last = -(-self._num_rows // self._cell_rows)
        stop = last if stop is None else min(stop, last)
        if first >= stop:
            return
        rows = self._rows(first * self._cell_rows, min(stop * self._cell_rows, self._num_rows))
        for cell, (first_row, batch) in enumerate(_regrouped(rows, first * self._cell_rows, self._cell_rows), first):
            mapped, bad = self._columns.batch(batch, first_row)
            yield CellBatch(cell, mapped, 0, bad)

    def _rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows of a range, in batches that end with row groups or cells."""
        starts = np.concatenate(([0], np.cumsum(self._group_rows)))
        groups = np.flatnonzero((starts[1:] > start) & (starts[:-1] < stop)).tolist()
        row = int(starts[groups[0]])
        with open_input(self._file.path) as stream, _open(stream, self._file.path) as parquet:
            batches = parquet.iter_batches(
                batch_size=self._cell_rows, row_groups=groups, columns=self._columns.top_level, use_threads=False
            )
            for batch in _named(batches, self._file.path):
                low, high = max(start - row, 0), min(stop - row, len(batch))
                row += len(batch)
                if low < high:
                    yield batch.slice(low, high - low)
                if row >= stop:
                    return


def _regrouped(batches: Iterator[pa.RecordBatch], start: int, num_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The same rows in batches of `num_rows`, with the number of each one's first row."""
    held: list[pa.RecordBatch] = []
    num_held = 0
    for given in batches:
        batch = given
        while num_held + len(batch) >= num_rows:
            cut = num_rows - num_held
            yield start, pa.concat_batches([*held, batch.slice(0, cut)])
            start += num_rows
            held, num_held = [], 0
            batch = batch.slice(cut)
        if len(batch):
            held.append(batch)
            num_held += len(batch)
    if held:
        yield start, pa.concat_batches(held)


def _open(stream: BinaryIO, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a Parquet file: {error}", help="remove it, or copy it again") from error


def _named(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise GristmillError(f"{path}: cannot be read: {error}", help="copy it again, or leave it out") from error
