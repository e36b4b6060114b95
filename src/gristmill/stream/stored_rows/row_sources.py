"""The source of each row of a stream. In a mixed lane the origins of a row tell it, not its shard.

When a row of such a shard is first read, the input file of each row's first document is looked up. This reads about 20
bytes for each document and keeps 2 bytes for each row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.records import ORIGIN
from gristmill.shards.arrow_stream import read_unchecked_batches
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.token_rows import ORIGINS
from gristmill.stream.stored_rows.remote_table import RemoteTable
from gristmill.stream.stored_rows.shard_blocks import check_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.stream.lanes.origin_sources import OriginSources
    from gristmill.stream.lanes.sources import RowShard
    from gristmill.stream.stored_rows.row_table import RowTable

_BY_ROW = -2
"""The number for a shard whose rows have different sources."""


class RowSources:
    """Finds the source of any rows, as numbers in `Stream.sources`."""

    def __init__(self, shards: list[RowShard], sources: list[str], table: RowTable | RemoteTable | None = None) -> None:
        """Make a finder; remote rows are looked up in `table`."""
        self._table = table
        self._shards = shards
        self._numbers = {source: number for number, source in enumerate(sources)}
        of_shards = [_BY_ROW if shard.origin_sources else self._numbers[shard.source] for shard in shards]
        # One more at the end: rows that only fill up a batch have shard -1, which is this entry.
        self._of_shards = np.array([*of_shards, -1], dtype=np.int64)
        self._of_rows: dict[int, NDArray[np.uint16]] = {}
        """The sources of rows, for the shards of mixed lanes that were read so far."""
        self._starts = np.cumsum([0, *(shard.rows for shard in shards)], dtype=np.int64)
        """The first index of each shard among all rows."""
        self._has_mixed = _BY_ROW in of_shards

    def __call__(self, shards: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the sources, from the number of each row's shard and its index among all rows."""
        numbers = self._of_shards[shards]
        if not self._has_mixed:
            return numbers
        for number in np.unique(shards[numbers == _BY_ROW]).tolist():
            lane = self._shards[number].origin_sources
            assert lane is not None
            chosen = shards == number
            of_lane = np.array([self._numbers[label] for label in lane.labels], dtype=np.int64)
            if isinstance(self._table, RemoteTable):
                files = self._find_remote_files(self._table, indices[chosen])
                numbers[chosen] = of_lane[_number_files(files, lane, self._shards[number])]
                continue
            if number not in self._of_rows:
                self._of_rows[number] = _find_sources(self._shards[number], lane)
            numbers[chosen] = of_lane[self._of_rows[number][indices[chosen] - self._starts[number]]]
        return numbers

    @staticmethod
    def _find_remote_files(table: RemoteTable, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Find the input file of each row in the blocks, which are open: only rows of open blocks are asked for."""
        blocks = table.blocks.blocks_of(indices)
        files = np.empty(len(indices), dtype=np.uint64)
        for block in np.unique(blocks).tolist():
            of_block = blocks == block
            rows = indices[of_block] - (table.blocks.ends[block] - table.blocks.rows[block])
            batch = table.blocks.open_blocks([block])[0].batch
            assert batch is not None
            files[of_block] = _take_first_files(batch)[rows]
        return files


def _find_sources(shard: RowShard, lane: OriginSources) -> NDArray[np.uint16]:
    """Find the source of each row of a shard, as a number in `lane.names`."""
    check_size(shard)
    path = Path(shard.path if shard.origins is None else shard.origins)
    try:
        files = np.concatenate([np.empty(0, np.uint64), *_read_first_files(path)])
    except READ_ERRORS as error:
        raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
    if len(files) != shard.rows:
        raise make_damage_error(
            shard.path, f"holds {len(files)} rows, but the manifest says {shard.rows}", shard.folder
        )
    return _number_files(files, lane, shard)


def _number_files(files: NDArray[np.uint64], lane: OriginSources, shard: RowShard) -> NDArray[np.uint16]:
    """Return the sources of input files, as numbers in `lane.names`."""
    indices = np.searchsorted(lane.files, files)
    is_known = indices < len(lane.files)
    is_known[is_known] = lane.files[indices[is_known]] == files[is_known]
    if not is_known.all():
        raise make_damage_error(shard.path, "has rows of an input file that is not in the manifest", shard.folder)
    return lane.numbers[indices]


def _read_first_files(path: Path) -> Iterator[NDArray[np.uint64]]:
    for batch in read_unchecked_batches(path):
        if ORIGIN in batch.schema.names:  # a sample has one origin
            yield batch.column(ORIGIN).field("file").to_numpy(zero_copy_only=False)
            continue
        yield _take_first_files(batch)


def _take_first_files(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return the input file of the first document of each row of tokens."""
    origins = batch.column(ORIGINS)
    origins.validate(full=True)
    files = origins.values.field("file").to_numpy(zero_copy_only=False)
    starts = origins.offsets.to_numpy()[:-1]
    if len(starts) and not 0 <= int(starts.min()) <= int(starts.max()) < len(files):
        raise ValueError("its origins are not those of its rows")
    first_files: NDArray[np.uint64] = files[starts]
    return first_files
