"""Inputs of units: spans of files in the first stage, and in later stages records that a barrier has stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError
from gristmill.core.records import KEY, TEXT, TEXT_TYPE
from gristmill.core.splits import TRAIN
from gristmill.pipeline.planning.units import Span
from gristmill.readers.source import open_reader
from gristmill.storage.files import map_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.readers.read import Read
    from gristmill.shards.stored_files import StoredFile
    from gristmill.storage.locations import Location


class StoredRecords(Protocol):
    """The input that a barrier passes to the next stage. Each barrier has its own class for it, in its module."""

    @property
    def num_rows(self) -> int:
        """The number of rows on disk, of which the barrier may drop some."""

    @property
    def is_copy(self) -> bool:
        """Whether the records have come before, so that these are new ones."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What else the barrier has counted, for the books."""

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count by reason the rows that the barrier drops, if `num_records` were read."""

    def batches(self, root: Location, seed: int) -> Iterator[pa.RecordBatch]:
        """Read the records, one batch for each cell."""

    def dropped_batches(self, root: Location, seed: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the records that `count_dropped` counts, as they came to the barrier, each batch with its reason.

        None where a file of evidence holds them.
        """


class WholeRecords:
    """The base of stored records of which a barrier drops and copies nothing, unless the class says otherwise."""

    __slots__ = ()

    @property
    def is_copy(self) -> bool:
        return False

    @property
    def counters(self) -> Mapping[str, int]:
        return {}

    def count_dropped(self, num_records: int) -> Mapping[str, int]:  # noqa: ARG002
        """Give no reasons: nothing is dropped."""
        return {}

    def dropped_batches(self, root: Location, seed: int) -> Iterator[tuple[str, pa.RecordBatch]]:  # noqa: ARG002
        """Give no records: nothing is dropped."""
        return iter(())


UnitInput: TypeAlias = Span | StoredRecords
"""One input of a unit. All inputs of a unit are of one kind: spans before the first barrier, stored records after it.
Only spans can be cut into slices, because only files have cells that can be read on their own."""


@dataclass(frozen=True, slots=True)
class StoredInput(WholeRecords):
    """An Arrow stream with one batch for each cell, read as it is."""

    file: StoredFile
    num_rows: int
    split: str = TRAIN

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (part of `StoredRecords`)
        """Read the stream to its end: whoever stops before does not hear of damage (`StoredFile.open_intact`)."""
        with self.file.open_intact(root) as stream:
            yield from _read_batches(stream)

    def read_texts(self, root: Location, rows: NDArray[np.int64]) -> Iterator[pa.Array]:
        """Read the texts of ascending rows."""
        start = 0
        for batch in self.batches(root):
            batch_rows = rows[(rows >= start) & (rows < start + batch.num_rows)] - start
            if len(batch_rows):
                yield _take_texts(batch, batch_rows)
            start += batch.num_rows


def read_streams(streams: Sequence[StoredInput], root: Location) -> Iterator[Iterable[pa.RecordBatch]]:
    """Read streams that are held in memory together, in order. Of a store they are fetched several at a time."""
    contents = map_files([stream.file.below(root) for stream in streams])
    for stream in streams:
        try:
            content = next(contents)
        except FileNotFoundError:
            raise stream.file.make_work_error(root, "is missing") from None
        stream.file.check_content(root, content)
        yield _read_batches(pa.BufferReader(content))


def _read_batches(file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    for batch in pa.ipc.open_stream(file):
        batch.validate()
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInput(StoredInput):
    """A shard of another dataset, of which only some rows are read: cells that hold none of them stay unread."""

    read: Read
    shard: SourceFile | None
    """None: the shard is gone."""
    schema: pa.Schema
    cell_rows: tuple[int, ...]
    """The number of rows of each cell."""

    def read_texts(self, root: Location, rows: NDArray[np.int64]) -> Iterator[pa.Array]:  # noqa: ARG002
        """Read the texts of ascending rows; nulls if the shard is gone.

        Raises:
            DamagedDatasetError: The shard does not have the rows that it had.
        """
        if self.shard is None:
            yield pa.nulls(len(rows), TEXT_TYPE)
            return
        starts = np.cumsum([0, *self.cell_rows])
        reader = open_reader(self.read, self.shard, self.schema)
        for cell in np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist():
            [cell_batch] = reader.read_cells(cell, cell + 1)
            if cell_batch.batch.num_rows != self.cell_rows[cell]:
                raise DamagedDatasetError(
                    f"{self.shard.path} has {cell_batch.batch.num_rows} documents in its cell {cell}, not "
                    f"{self.cell_rows[cell]} as when it was signed",
                    help="gristmill verify tells what is damaged",
                )
            cell_rows = rows[(rows >= starts[cell]) & (rows < starts[cell + 1])] - starts[cell]
            yield _take_texts(cell_batch.batch, cell_rows)


def _take_texts(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.Array:
    # A sample may have no text: its key tells people which one it is.
    name = next((name for name in (TEXT, KEY) if name in batch.schema.names), None)
    texts = pa.nulls(batch.num_rows, TEXT_TYPE) if name is None else batch.column(name)
    return texts.take(pa.array(rows))
