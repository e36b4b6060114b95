"""Reading the block index of a dataset, and making the one of a dataset that has none.

An index may come from anywhere, and ranges of files are fetched by it: it is compared with the manifest first.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.shards.arrow_stream import read_mapped_batches
from gristmill.shards.block_index import BLOCKS_SCHEMA, COSTS_SCHEMA, NO_COSTS, open_lane, scan_blocks
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.manifests.stored_files import MANIFEST, LaneIndex
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.commit import write_file
from gristmill.storage.user_cache.local_copies import find_cache_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.shards.manifests.stored_files import Shard, StoredFile
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class LaneBlocks:
    """The blocks of one split and source, in the order of their rows: one entry a block in each array."""

    shard: NDArray[np.int64]
    """The number of the shard among those of the split and source."""
    offset: NDArray[np.int64]
    bytes: NDArray[np.int64]
    rows: NDArray[np.int64]
    xxh3: NDArray[np.uint64]


def read_blocks(folder: Location, manifest: Manifest, split: str, source: str) -> LaneBlocks:
    """Read where the blocks of a split and source are. A dataset without an index is indexed first.

    Raises:
        DamagedDatasetError: The index contradicts the manifest.
    """
    place, index = _find_lane(folder, manifest, split, source)
    table = _read_table(place, index.blocks, BLOCKS_SCHEMA)
    columns = {name: table.column(name).to_numpy() for name in BLOCKS_SCHEMA.names}
    checksums = columns.pop("xxh3")
    lane = LaneBlocks(**{name: column.astype(np.int64) for name, column in columns.items()}, xxh3=checksums)
    if problem := _find_problem(lane, manifest.splits[split][source]):
        raise make_damage_error(index.blocks.path, problem, folder)
    return lane


def read_costs(folder: Location, manifest: Manifest, split: str, source: str) -> NDArray[np.uint64]:
    """Read the attention cost of each row of a split and source; nothing where rows are no tokens.

    Raises:
        DamagedDatasetError: The index contradicts the manifest.
    """
    return np.concatenate([NO_COSTS, *map_costs(folder, manifest, split, source)])


def map_costs(folder: Location, manifest: Manifest, split: str, source: str) -> list[NDArray[np.uint64]]:
    """Like `read_costs`, in pieces that are views of the mapped file: nothing is in memory until it is used."""
    place, index = _find_lane(folder, manifest, split, source)
    if index.costs is None:
        return []
    table = _read_table(place, index.costs, COSTS_SCHEMA)
    if table.num_rows != sum(shard.rows for shard in manifest.splits[split][source]):
        raise make_damage_error(index.costs.path, "does not have one cost for each row", folder)
    return [piece.to_numpy() for piece in table.column("cost").chunks]


def _find_lane(folder: Location, manifest: Manifest, split: str, source: str) -> tuple[Location, LaneIndex]:
    """Find the index of a split and source, and the folder it is in: the dataset, or the user's cache."""
    if not manifest.index:
        return _index_once(folder, manifest, split, source)
    lane = manifest.index.get(split, {}).get(source)
    if lane is None:
        raise make_damage_error(MANIFEST, f"names no index of {split}/{source}", folder)
    return folder, lane


def _index_once(folder: Location, manifest: Manifest, split: str, source: str) -> tuple[Path, LaneIndex]:
    """Index a split and source in the cache folder, unless that was done before; the data names the place."""
    content = msgspec.json.encode([manifest.dataset_hash, split, source])
    target = find_cache_group(f"index-{xxhash.xxh3_128_hexdigest(content)}")
    note = target / "lane.json"
    try:
        lane = msgspec.json.decode(note.read_bytes(), type=LaneIndex)
        if all(file.below(target).stat().st_size == file.bytes for file in lane.files()):
            return target, lane
    except (FileNotFoundError, msgspec.DecodeError):
        pass
    with ExitStack() as files:
        writer = open_lane(files, target, "lane", "index")
        for shard in manifest.splits[split][source]:
            path = shard.below(folder)
            try:
                # Readers trust the checksums of blocks: those of a damaged shard must not be taken down as right.
                if compute_file_checksum(path) != shard.xxh3:
                    raise ValueError("its checksum differs")
                writer.add(scan_blocks(path, shard, shard.rows, manifest.format))
            except READ_ERRORS as error:
                raise make_damage_error(shard.path, f"cannot be read: {error}", folder) from error
        lane = writer.commit()
    write_file(note, msgspec.json.encode(lane), "index")
    return target, lane


def _read_table(folder: Location, file: StoredFile, schema: pa.Schema) -> pa.Table:
    try:
        path = file.copy_below(folder)
        if compute_file_checksum(path) != file.xxh3:
            raise ValueError("its checksum differs")
        return pa.Table.from_batches(read_mapped_batches(path, schema), schema)
    except READ_ERRORS as error:
        raise make_damage_error(file.path, f"cannot be read: {error}", folder) from error


def _find_problem(blocks: LaneBlocks, shards: Sequence[Shard]) -> str | None:
    """Describe how an index contradicts the manifest: it may come from anywhere, and ranges are fetched by it."""
    numbers, ends = blocks.shard, blocks.offset + blocks.bytes
    if np.any(np.diff(numbers) < 0) or np.any(numbers >= len(shards)):
        return "names a shard that the manifest does not"
    follows = np.diff(numbers) == 0
    limits = np.array([shard.bytes for shard in shards], dtype=np.int64)[numbers]
    if np.any(blocks.offset < 0) or np.any(blocks.bytes < 0) or np.any(ends > limits) or np.any(ends < blocks.offset):
        return "names a block beyond the end of its shard"
    if np.any(follows & (blocks.offset[1:] < ends[:-1])):
        return "names blocks that overlap"
    rows = np.bincount(numbers, weights=blocks.rows, minlength=len(shards))
    if np.any(blocks.rows < 0) or not np.array_equal(rows, [shard.rows for shard in shards]):
        return "names other numbers of rows than the manifest"
    return None
