"""What an earlier leg left on disk, as the input of a later one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.splits import TRAIN
from gristmill.order.interleaving import Interleaving
from gristmill.pipeline.stages.interleave import RowCursor, interleave_rows
from gristmill.shards.arrow_stream import unchecked_batches
from gristmill.steps.limit import OVER_LIMIT
from gristmill.steps.mix import NOT_CHOSEN
from gristmill.steps.read import CELL_BYTES
from gristmill.steps.records.source_column import with_source
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gristmill.pipeline.stages.removal_lists import RemovalList
    from gristmill.steps.mix import Mix
    from gristmill.steps.shuffle import Shuffle


@dataclass(frozen=True, slots=True)
class StoredInput:
    """An Arrow stream with one batch a cell."""

    path: str
    num_rows: int
    split: str = TRAIN
    max_rows: int | None = None
    """Of a `limit`: how many of the first rows go on."""
    removals: RemovalList | None = None
    """Of a `deduplicate`: which rows do not."""

    is_copy: ClassVar[bool] = False

    def count_dropped(self, num_given: int) -> Mapping[str, int]:
        """How many rows stay behind, by reason, if so many went on."""
        if self.removals is not None:
            return self.removals.dropped
        return {OVER_LIMIT: self.num_rows - num_given} if num_given < self.num_rows else {}

    @property
    def counters(self) -> Mapping[str, int]:
        """What else the barrier has counted here."""
        return {"clusters": self.removals.num_clusters} if self.removals is not None else {}

    def batches(self, root: Path, seed: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (as StoredBucket's)
        left = self.num_rows if self.max_rows is None else self.max_rows
        removed = self.removals.load(root) if self.removals is not None else None
        with pa.memory_map(str(path_below(root, self.path))) as file:
            for batch in pa.ipc.open_stream(file):
                if left <= 0:
                    return
                batch.validate()
                yield batch.slice(0, left) if removed is None else removed.apply(batch, self.num_rows - left)
                left -= batch.num_rows


@dataclass(frozen=True, slots=True)
class StoredSelection:
    """An Arrow stream of which a `mix` takes some or all, perhaps not for the first time."""

    path: str
    num_rows: int
    mix: Mix
    key_bound: int | None
    """Records with smaller keys are taken; None: all."""
    is_copy: bool
    """They were taken before: these are new records, and other splits than that for training are not among them."""
    source: str

    counters: ClassVar[Mapping[str, int]] = {}

    def count_dropped(self, num_given: int) -> Mapping[str, int]:
        """Of records that came for the first time."""
        return {NOT_CHOSEN: self.num_rows - num_given} if num_given < self.num_rows and not self.is_copy else {}

    def batches(self, root: Path, seed: int) -> Iterator[pa.RecordBatch]:
        for batch in StoredInput(self.path, self.num_rows).batches(root):
            is_mixed = self.mix.is_mixed(batch)
            taken = np.ones(batch.num_rows, dtype=np.bool_)
            if self.key_bound is not None and self.key_bound < 1 << 64:
                taken = self.mix.keys(batch, seed) < np.uint64(self.key_bound)
            chosen = batch.filter(pa.array(taken & is_mixed if self.is_copy else taken | ~is_mixed))
            yield with_source(chosen, self.source) if self.mix.joins_sources else chosen


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block of a file of Arrow blocks."""

    path: str
    start: int
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket of a `shuffle`: blocks of many units, to be sorted together. Held in memory: about 64 MiB."""

    shuffle: Shuffle
    schema: pa.Schema
    blocks: tuple[StoredBlock, ...]
    source: str
    epoch: int

    is_copy: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, int]] = {}

    @property
    def num_rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    def count_dropped(self, num_given: int) -> Mapping[str, int]:  # noqa: ARG002  (as of the others)
        """A shuffle drops nothing."""
        return {}

    def batches(self, root: Path, seed: int) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches([batch for block in self.blocks for batch in self._read(root, block)])
        rows = self.shuffle.sort(table.combine_chunks().to_batches()[0], seed, self.epoch)
        if self.shuffle.joins_sources:
            rows = with_source(rows, self.source)
        # Cells again: as many rows as make about one by the bucket's mean, which no cutting of the input can change.
        step = max(1, rows.num_rows * CELL_BYTES // max(rows.nbytes, 1))
        for first in range(0, rows.num_rows, step):
            yield rows.slice(first, step)

    def _read(self, root: Path, block: StoredBlock) -> list[pa.RecordBatch]:
        with path_below(root, block.path).open("rb") as file:
            file.seek(block.start)
            message = pa.ipc.read_message(pa.py_buffer(file.read(block.size)))
        return [pa.ipc.read_record_batch(message, self.schema)]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Some rows of an Arrow stream."""

    path: str
    first: int
    stop: int

    def batches(self, root: Path) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in unchecked_batches(path_below(root, self.path)):
            if start >= self.stop:
                return
            first, stop = max(self.first - start, 0), min(self.stop - start, batch.num_rows)
            if first < stop:
                yield batch.slice(first, stop - first)
            start += batch.num_rows


@dataclass(frozen=True, slots=True)
class StoredInterleaving:
    """Consecutive rows of the lane in which all sources are interleaved."""

    rows: tuple[tuple[StoredRows, ...], ...]
    """Of each source, in its order."""
    counts: tuple[int, ...]
    """Rows of each source in the whole lane."""
    first: int
    """The number of the first row in the lane."""
    num_drawn: tuple[int, ...]
    """Rows of each source before that."""
    block_rows: int

    is_copy: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, int]] = {}

    @property
    def num_rows(self) -> int:
        return sum(rows.stop - rows.first for of_source in self.rows for rows in of_source)

    def count_dropped(self, num_given: int) -> Mapping[str, int]:  # noqa: ARG002  (as of the others)
        """Nothing is dropped."""
        return {}

    def batches(self, root: Path, seed: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (as of the others)
        sources = Interleaving(self.counts).sources(self.first, self.num_drawn, self.num_rows)
        cursors = [RowCursor(_chain_batches(root, of_source)) for of_source in self.rows]
        for first in range(0, self.num_rows, self.block_rows):
            yield interleave_rows(sources[first : first + self.block_rows], cursors)


def _chain_batches(root: Path, files: tuple[StoredRows, ...]) -> Iterator[pa.RecordBatch]:
    for rows in files:
        yield from rows.batches(root)
