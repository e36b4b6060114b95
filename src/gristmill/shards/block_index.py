"""The block index: where each block of each shard is, so that a part of a shard can be fetched and verified alone.

For each split and source there is one small Arrow stream, `index/<split>/<source>.arrow`, with a line for each block:
the number of its shard, offset, bytes, rows and xxh3. Rows of tokens have a second one, `….costs.arrow`, with the
attention cost of each row: the sum of its documents' squared lengths. It is a separate file because few readers need
it, and it is longer: 8 bytes for each row, while a block of 4 MiB costs 36.

The index follows from the shards, so it is not part of `dataset_hash`. It may come from anywhere, and ranges of files
are fetched by it: readers compare it with the manifest first.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.records import INPUT_IDS
from gristmill.shards.canonical import STREAM_END, make_damage_error, read_mapped_batches, stream_block, stream_header
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.stored_files import MANIFEST, LaneIndex, StoredFile
from gristmill.shards.token_rows import LENGTHS, compute_attention_costs
from gristmill.storage.commit import PendingFile
from gristmill.storage.files import compute_file_checksum, open_stream_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard
    from gristmill.storage.locations import Location


BLOCKS_SCHEMA = pa.schema(
    [
        ("shard", pa.uint32()),
        ("offset", pa.uint64()),
        ("bytes", pa.uint64()),
        ("rows", pa.uint64()),
        ("xxh3", pa.uint64()),
    ]
)
COSTS_SCHEMA = pa.schema([("cost", pa.uint64())])
_BATCH_LINES = 1 << 16
NO_COSTS = np.empty(0, dtype=np.uint64)


@dataclass(slots=True)
class ShardBlocks:
    """The blocks of one shard in order, as they are written or found."""

    offset: int = 0
    """Where the first block begins: after the header."""
    sizes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    costs: list[NDArray[np.uint64]] = field(default_factory=list)
    """The attention cost of each row, in pieces; nothing where rows are no tokens."""

    def add(self, block: Buffer, records: pa.RecordBatch) -> None:
        """Add the next block, which holds these records; without records it has no bytes, and is none."""
        if not records.num_rows:
            return
        self.sizes.append(memoryview(block).nbytes)
        self.rows.append(records.num_rows)
        self.checksums.append(xxhash.xxh3_64_intdigest(block))
        if holds_token_rows(records.schema):
            self.costs.append(compute_attention_costs(records))


def holds_token_rows(schema: pa.Schema) -> bool:
    """Tell whether records with these columns are rows of tokens."""
    return LENGTHS in schema.names and INPUT_IDS in schema.names


def encode_costs(costs: Sequence[NDArray[np.uint64]]) -> bytes:
    """Encode the costs of rows with 4 bytes each, or with 8 if one needs them."""
    joined = np.concatenate([NO_COSTS, *costs])
    return joined.astype("<u4" if not len(joined) or joined.max() < 1 << 32 else "<u8").tobytes()


def decode_costs(encoded: bytes, num_rows: int) -> NDArray[np.uint64]:
    """Decode the costs of this many rows."""
    if not encoded:
        return NO_COSTS
    return np.frombuffer(encoded, dtype=f"<u{len(encoded) // num_rows}").astype(np.uint64)


def scan_blocks(path: Location, shard: StoredFile, num_rows: int, format: str) -> ShardBlocks:
    """Find the blocks of a shard by reading it: the messages of an Arrow stream; of other formats, the whole file."""
    if format != "arrow":
        return ShardBlocks(0, [shard.bytes], [num_rows], [int(shard.xxh3, 16)])
    blocks = ShardBlocks()
    with open_stream_source(path) as stream, pa.ipc.open_stream(stream) as reader:
        schema = reader.schema
    with open_stream_source(path) as stream:
        messages = pa.ipc.MessageReader.open_stream(stream)
        messages.read_next_message()  # the schema
        blocks.offset = start = stream.tell()
        for message in messages:
            end = stream.tell()
            stream.seek(start)
            data = stream.read_buffer(end - start)
            records = pa.ipc.read_record_batch(message, schema)
            records.validate(full=True)  # lengths of documents are read, and offsets may point anywhere
            blocks.add(data, records)
            start = end
    return blocks


class BlockIndexWriter:
    """Writes the index of a dataset, shard by shard, in the order of each split and source."""

    def __init__(self, root: Location, folder: str, run_id: str) -> None:
        """Open an index whose files are in a folder below `root`."""
        self._root = root
        self._folder = folder
        self._run_id = run_id
        self._files = ExitStack()
        self._lanes: dict[tuple[str, str], _LaneWriter] = {}

    def __enter__(self) -> Self:
        self._files.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._files.__exit__(None, None, None)

    def add(self, split: str, source: str, blocks: ShardBlocks) -> None:
        """Add the next shard of a split and source."""
        lane = self._lanes.get((split, source))
        if lane is None:
            stem = f"{self._folder}/{split}/{source}"
            tables = [
                _TableWriter(self._files.enter_context(PendingFile(self._root / path, self._run_id)), path, schema)
                for path, schema in ((f"{stem}.arrow", BLOCKS_SCHEMA), (f"{stem}.costs.arrow", COSTS_SCHEMA))
            ]
            lane = self._lanes[split, source] = _LaneWriter(*tables)
        lane.add(blocks)

    def commit(self) -> dict[str, dict[str, LaneIndex]]:
        """Give all files their names; return them by split and source."""
        index: dict[str, dict[str, LaneIndex]] = {}
        for (split, source), lane in self._lanes.items():
            index.setdefault(split, {})[source] = lane.commit()
        return index


class _LaneWriter:
    """The two files of one split and source, while they are written."""

    def __init__(self, blocks: _TableWriter, costs: _TableWriter) -> None:
        self._blocks = blocks
        self._costs = costs
        self._num_shards = 0

    def add(self, shard: ShardBlocks) -> None:
        sizes = np.array(shard.sizes, dtype=np.uint64)
        offsets = np.uint64(shard.offset) + np.cumsum(sizes, dtype=np.uint64) - sizes
        numbers = np.full(len(sizes), self._num_shards)
        rows, checksums = np.array(shard.rows, dtype=np.uint64), np.array(shard.checksums, dtype=np.uint64)
        self._blocks.add(numbers, offsets, sizes, rows, checksums)
        if shard.costs:
            self._costs.add(np.concatenate(shard.costs))
        self._num_shards += 1

    def commit(self) -> LaneIndex:
        return LaneIndex(blocks=self._blocks.commit(), costs=self._costs.commit() if self._costs.num_lines else None)


class _TableWriter:
    """An Arrow stream that is written a few lines at a time, in batches of a fixed number."""

    def __init__(self, file: PendingFile, path: str, schema: pa.Schema) -> None:
        self._file = file
        self._path = path
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self.num_lines = 0
        file.write(stream_header(schema))

    def add(self, *columns: NDArray[np.generic]) -> None:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self.num_lines += len(columns[0])
        if sum(batch.num_rows for batch in self._waiting) >= _BATCH_LINES:
            self._write(_BATCH_LINES)

    def commit(self) -> StoredFile:
        self._write(1)
        self._file.write(STREAM_END)
        self._file.commit()
        return StoredFile(path=self._path, bytes=self._file.num_bytes, xxh3=self._file.checksum)

    def _write(self, least: int) -> None:
        """Write what waits in full batches, the last one if it has at least this many lines."""
        if not self._waiting:
            return
        waiting = pa.concat_batches(self._waiting)
        start = 0
        while waiting.num_rows - start >= least:
            self._file.write(stream_block(waiting.slice(start, _BATCH_LINES), self._schema))
            start = min(start + _BATCH_LINES, waiting.num_rows)
        self._waiting = [waiting.slice(start)]


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
    """Read where the blocks of a split and source are.

    Raises:
        DamagedDatasetError: The index contradicts the manifest.
    """
    index = _find_lane(folder, manifest, split, source)
    table = _read_table(folder, index.blocks, BLOCKS_SCHEMA)
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
    index = _find_lane(folder, manifest, split, source)
    if index.costs is None:
        return []
    table = _read_table(folder, index.costs, COSTS_SCHEMA)
    if table.num_rows != sum(shard.rows for shard in manifest.splits[split][source]):
        raise make_damage_error(index.costs.path, "does not have one cost for each row", folder)
    return [piece.to_numpy() for piece in table.column("cost").chunks]


def _find_lane(folder: Location, manifest: Manifest, split: str, source: str) -> LaneIndex:
    lane = manifest.index.get(split, {}).get(source)
    if lane is None:
        raise make_damage_error(MANIFEST, f"names no index of {split}/{source}", folder)
    return lane


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
