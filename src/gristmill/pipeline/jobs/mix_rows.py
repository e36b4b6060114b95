"""The rows of one dataset that are part of a mix, as a sequence of which any worker reads any part.

Whole epochs come first, in the order of the shards; then the selected rows of one more epoch. Which these are is a pure
function of their numbers (`PartialEpoch`), so that nothing of the size of the dataset is sent to workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.records import ORIGIN
from gristmill.order import Permutation
from gristmill.shards.arrow_stream import read_unchecked_batches
from gristmill.shards.manifests.stored_files import file_key
from gristmill.shards.token_rows import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.pipeline.jobs.mix_inputs import MixSource
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class PartialEpoch:
    """The rows of an incomplete epoch: the first ones of a random order, given back in their own order."""

    num_rows: int
    """All rows of the dataset."""
    key: int
    count: int
    """The number of rows that are selected."""

    def select(self, first: int, stop: int) -> NDArray[np.bool_]:
        """Tell which of these rows are selected."""
        positions: NDArray[np.int64] = np.asarray(Permutation(self.num_rows, self.key)(np.arange(first, stop)))
        return positions < self.count


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The rows of one source that are part of a mix, in their order. It is sent to the workers."""

    name: str
    paths: tuple[Location, ...]
    """The shards of the source that have rows."""
    shard_rows: tuple[int, ...]
    partial_rows: tuple[int, ...]
    """The rows of each shard that are part of the incomplete epoch."""
    whole_epochs: int
    partial_epoch: PartialEpoch
    new_file_ids: dict[int, int]
    """New ids of input files whose own id another source of the mix has, too."""

    @property
    def num_rows(self) -> int:
        return self.whole_epochs * self.partial_epoch.num_rows + self.partial_epoch.count

    def batches(self, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Read a part of the sequence."""
        start = 0
        for epoch in range(self.whole_epochs + 1):
            counts = self.partial_rows if epoch == self.whole_epochs else self.shard_rows
            for number, count in enumerate(counts):
                if first < start + count and start < stop:
                    between = max(first - start, 0), min(stop - start, count)
                    yield from self.shard_batches(number, *between, is_partial=epoch == self.whole_epochs)
                start += count

    def shard_batches(self, number: int, first: int, stop: int, *, is_partial: bool) -> Iterator[pa.RecordBatch]:
        """Read rows `first` to `stop` of a shard; with `is_partial`, of its rows in the incomplete epoch."""
        row, start = sum(self.shard_rows[:number]), 0
        for stored_batch in read_unchecked_batches(self.paths[number]):
            is_selected = self.partial_epoch.select(row, row + stored_batch.num_rows) if is_partial else None
            count = stored_batch.num_rows if is_selected is None else int(np.count_nonzero(is_selected))
            if first < start + count and start < stop:
                stored_batch.validate(full=True)
                batch = _replace_file_ids(stored_batch, self.new_file_ids) if self.new_file_ids else stored_batch
                batch = batch if is_selected is None else batch.filter(pa.array(is_selected))
                offset = max(first - start, 0)
                yield batch.slice(offset, min(stop - start, count) - offset)
            row, start = row + stored_batch.num_rows, start + count
            if start >= stop:
                return


def select_rows(
    source: MixSource, whole_epochs: int, partial_epoch: PartialEpoch, file_ids: set[int] | None = None
) -> SelectedRows:
    """Select whole epochs of a source, and rows of one more. Adds its file ids to `file_ids`, those of other sources.

    The id of an input file is a hash of its source and path. Two recipes may both have a source `web` with a file
    `a.jsonl`: where their datasets are mixed, one of the two files needs another id.
    """
    new_file_ids = {}
    if file_ids is not None:
        own_ids = {int(key, 16) for key in source.manifest.files}
        clashes = own_ids & file_ids
        new_file_ids = {
            number: xxhash.xxh3_64_intdigest(f"{source.name}\0{file_key(number)}".encode()) for number in clashes
        }
        file_ids |= (own_ids - clashes) | set(new_file_ids.values())
    shard_rows = tuple(shard.rows for shard in source.shards)
    ends = np.cumsum(shard_rows)
    partial_rows = [
        int(np.count_nonzero(partial_epoch.select(end - rows, end)))
        for end, rows in zip(ends.tolist(), shard_rows, strict=True)
    ]
    return SelectedRows(
        name=source.name,
        paths=tuple(shard.below(source.folder.absolute()) for shard in source.shards),
        shard_rows=shard_rows,
        partial_rows=tuple(partial_rows),
        whole_epochs=whole_epochs,
        partial_epoch=partial_epoch,
        new_file_ids=new_file_ids,
    )


def _replace_file_ids(batch: pa.RecordBatch, new_file_ids: dict[int, int]) -> pa.RecordBatch:
    """Replace ids of input files in the origins of a batch."""
    name = ORIGINS if ORIGINS in batch.schema.names else ORIGIN
    index = batch.schema.get_field_index(name)
    column = batch.column(index)
    origin = column.values if name == ORIGINS else column
    ids: NDArray[np.uint64] = origin.field("file").to_numpy(zero_copy_only=False).copy()
    for old in np.unique(ids).tolist():
        if old in new_file_ids:
            ids[ids == old] = new_file_ids[old]
    fields = [pa.array(ids), origin.field("position"), origin.field("part")]
    changed = pa.StructArray.from_arrays(fields, fields=list(origin.type))
    if name == ORIGINS:
        changed = pa.ListArray.from_arrays(column.offsets, changed).cast(column.type)
    return batch.set_column(index, batch.schema.field(index), changed)
