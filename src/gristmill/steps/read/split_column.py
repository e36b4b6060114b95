"""The split of each record as a column, from the file in its origin: the same for every format."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN, SPLIT
from gristmill.core.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.steps.read.cells import CellBatch, FileReader


def add_splits(cell: CellBatch, schema: pa.Schema, splits: Mapping[int, str]) -> CellBatch:
    """Add the column of splits to a cell; `splits` are those of the files, by their ids."""
    batch = cell.batch
    if len(splits) == 1:
        [split] = splits.values()
        column = pa.repeat(pa.scalar(split, pa.string()), batch.num_rows)
    else:
        files, indexes = np.unique(batch.column(ORIGIN).field("file").to_numpy(), return_inverse=True)
        names = pa.array([splits.get(int(file), TRAIN) for file in files], pa.string())
        column = names.take(pa.array(indexes))
    arrays = [column if name == SPLIT else batch.column(name) for name in schema.names]
    return replace(cell, batch=pa.RecordBatch.from_arrays(arrays, schema=schema))


class WithSplit:
    """A reader that adds the column of splits to the cells of another reader."""

    def __init__(self, reader: FileReader, schema: pa.Schema, splits: Mapping[int, str]) -> None:
        self.can_cut = reader.can_cut
        self._reader = reader
        self._schema = schema
        self._splits = splits

    def cell_sizes(self) -> list[int]:
        return self._reader.cell_sizes()

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        for cell in self._reader.read_cells(first, stop):
            yield add_splits(cell, self._schema, self._splits)
