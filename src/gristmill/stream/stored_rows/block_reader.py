"""The blocks of shards that are read through a cache: on a store, or of foreign tables, and beside them local ones.

A block is about 4 MiB of a shard, and the smallest piece that is fetched. Threads fetch the blocks of later batches,
which are known in advance. Memory: 170 bytes for each block of the dataset; blocks that are open are mapped from the
cache, and closed when they were used longest ago.

Rows of open blocks are found without a lock. A reader takes the present `BlockGeneration` first, and keeps it until its
rows are copied. A block that is closed meanwhile is handed to that generation, which keeps it and later ones mapped.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError
from gristmill.core.records import IMAGES
from gristmill.shards.block_index import holds_token_rows
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.storage.locations import StorePath, parse_location
from gristmill.stream.batches.kernels import B_END_ROW, BLOCK_COLUMNS
from gristmill.stream.batches.mapping import map_descriptor, map_range
from gristmill.stream.stored_rows.shard_blocks import check_size, make_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.storage.user_cache.block_cache import BlockCache
    from gristmill.stream.lanes.sources import RowShard

_NUM_THREADS = 8
_MAX_WAITING = 32
"""The most blocks that are requested ahead at a time."""
PARTS_OF_CACHE = 4
"""One of these parts of the cache holds the blocks that are requested ahead."""


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block that is mapped into memory."""

    mapped: pa.Buffer
    batch: pa.RecordBatch | None
    """Its records; None for a part of a tar."""
    line: NDArray[np.int64] | None
    """Where the columns of its rows of tokens are (see `kernels`); None for samples."""


class BlockGeneration:
    """A time between two closings of blocks. Who holds it keeps all blocks mapped that were open in it."""

    __slots__ = ("closed", "later")

    def __init__(self) -> None:
        self.closed: OpenBlock | None = None
        """The block whose closing ended it."""
        self.later: BlockGeneration | None = None


class BlockReader:
    """All blocks of a stream. Threads may use it together."""

    def __init__(self, shards: list[RowShard], cache: BlockCache) -> None:
        self.shards = shards
        self.cache = cache
        blocks = [shard.blocks for shard in shards if shard.blocks is not None]
        self.shard_of = np.repeat(np.arange(len(blocks)), [len(entry.rows) for entry in blocks])
        self.offsets, self.bytes, self.rows = (
            np.concatenate([getattr(entry, name) for entry in blocks]) for name in ("offset", "bytes", "rows")
        )
        self.checksums = np.concatenate([entry.xxh3 for entry in blocks])
        self.ends = np.cumsum(self.rows)
        self.lines = np.zeros((len(self.rows), BLOCK_COLUMNS), dtype=np.int64)
        """Where the columns of each open block are (see `kernels`)."""
        self.places = np.stack([np.arange(len(self.rows)), np.zeros(len(self.rows), np.int64)], axis=1)
        """The line of each block and their number: 0 while it is not open, as kernels expect it of shards."""
        self.generation = BlockGeneration()
        self._last_used = np.zeros(len(self.rows) + 1, dtype=np.int64)  # rows that fill up a batch have the block -1
        self._clock = 0
        self._open: dict[int, OpenBlock] = {}
        self._waiting: dict[int, Future[OpenBlock]] = {}
        self._ahead: set[int] = set()
        """Blocks that were requested ahead and not used since."""
        self._open_bytes = 0
        self._opening = threading.Lock()
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="gristmill-fetch")
        weakref.finalize(self, _end_threads, self._pool, os.getpid())

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are open, so that none will be fetched."""
        return len(self._open) == len(self.rows)

    def blocks_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's block."""
        return np.searchsorted(self.ends, indices, side="right")

    def note_use(self, numbers: NDArray[np.int64]) -> None:
        """Note that blocks are in use: those that were used longest ago are closed first."""
        self._clock += 1
        self._last_used[numbers] = self._clock
        if self._ahead:
            self._ahead.difference_update(numbers.tolist())

    def open_blocks(self, numbers: list[int]) -> list[OpenBlock]:
        """Open blocks, and wait for all of them."""
        requested = [self._request(number) for number in numbers]
        return [block if isinstance(block, OpenBlock) else block.result() for block in requested]

    def open_row(self, index: int) -> tuple[int, int, OpenBlock]:
        """Open the block of a row; return its number, the row's number in it, and the block."""
        number = int(np.searchsorted(self.ends, index, side="right"))
        return number, index - int(self.ends[number] - self.rows[number]), self.open_blocks([number])[0]

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start fetching the blocks of rows that will be needed, as many as are allowed at a time.

        A part of the cache is for them: in a small one they would otherwise be removed before they are used.
        """
        most_bytes = self.cache.max_bytes // PARTS_OF_CACHE
        for number in np.unique(self.blocks_of(indices)).tolist():
            if len(self._waiting) >= _MAX_WAITING:
                return
            if number not in self._open and number not in self._waiting:
                if self.bytes[[number, *self._ahead]].sum() > most_bytes:
                    return
                self._ahead.add(number)
                self._request(number)

    def find_name(self, number: int) -> str:
        """Return the name of a block in the cache: by the content of its shard."""
        shard = self.shards[self.shard_of[number]]
        form = "" if shard.table is None else f"-{shard.table.ids}"
        return f"{shard.checksum}-{self.offsets[number]}-{self.bytes[number]}{form}"

    def _request(self, number: int) -> OpenBlock | Future[OpenBlock]:
        with self._opening:
            self._last_used[number] = self._clock
            if (block := self._open.get(number)) is not None:
                return block
            if number not in self._waiting:
                self._waiting[number] = self._pool.submit(self._open_block, number)
            return self._waiting[number]

    def _open_block(self, number: int) -> OpenBlock:
        try:
            block = self._load(number)
        except BaseException:
            self._ahead.discard(number)
            with self._opening:
                del self._waiting[number]
            raise
        with self._opening:
            del self._waiting[number]
            self._open[number] = block
            self._open_bytes += int(self.bytes[number])
            if block.line is not None:
                self.lines[number] = block.line
                self.places[number, 1] = 1
            while self._open_bytes > self.cache.max_bytes and len(self._open) > 1:
                self._close(self._find_oldest(1)[0])
        return block

    def _find_oldest(self, count: int) -> list[int]:
        """Find the open blocks that were used longest ago."""
        numbers = np.fromiter(self._open, dtype=np.int64)
        return [int(number) for number in numbers[np.argsort(self._last_used[numbers], kind="stable")[:count]]]

    def _close(self, number: int) -> None:
        """Forget a block. Who still reads it keeps it: by itself, or by a generation in which it was open."""
        self.places[number, 1] = 0  # before the generation ends: who begins to read now does not find it
        block = self._open.pop(number)
        self._ahead.discard(number)
        self._open_bytes -= int(self.bytes[number])
        last, self.generation = self.generation, BlockGeneration()
        last.later, last.closed = self.generation, block

    def _load(self, number: int) -> OpenBlock:
        shard = self.shards[self.shard_of[number]]
        num_fetches = self.cache.num_fetches
        mapped = self._map(number, shard)
        batch, line = None, None
        try:
            if shard.format == "arrow":
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(mapped), shard.schema)
                if batch.num_rows != self.rows[number]:
                    raise ValueError(f"it has {batch.num_rows} rows at byte {self.offsets[number]}")
                if holds_token_rows(shard.schema):
                    line = np.array(make_line(batch, mapped), dtype=np.int64)
                    line[B_END_ROW] = batch.num_rows
                    if IMAGES in shard.schema.names:
                        batch.column(IMAGES).validate(full=True)
                else:
                    batch.validate(full=True)
        except READ_ERRORS as error:
            raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
        if self.cache.num_fetches > num_fetches:
            self._close_evicted()
        return OpenBlock(mapped, batch, line)

    def _map(self, number: int, shard: RowShard) -> pa.Buffer:
        """Map a block: of the cache, or of a shard that is on the disk already."""
        start, num_bytes = int(self.offsets[number]), int(self.bytes[number])
        if not shard.is_cached:
            check_size(shard)
            return map_range(shard.path, start, num_bytes)
        name = self.find_name(number)
        if shard.table is not None:
            from gristmill.stream.foreign.table_blocks import convert_block  # noqa: PLC0415  (loads Parquet)

            descriptor, num_bytes = self.cache.open_sealed(name, partial(convert_block, shard.table, start, num_bytes))
        else:
            fetch = partial(_fetch, shard.path, start, start + num_bytes, shard.version)
            try:
                descriptor = self.cache.open_block(name, num_bytes, int(self.checksums[number]), fetch)
            except DamagedDatasetError as error:
                problem = f"is damaged at byte {start}: {error.message}"
                raise make_damage_error(shard.path, problem, shard.folder) from error
        try:
            return map_descriptor(descriptor, num_bytes, at_random=True)
        finally:
            os.close(descriptor)

    def _close_evicted(self) -> None:
        """Close some blocks whose files are gone: a mapping keeps its file's space."""
        with self._opening:
            for number in self._find_oldest(2):
                is_cached = self.shards[self.shard_of[number]].is_cached
                if is_cached and not self.cache.has_block(self.find_name(number)):
                    self._close(number)


def _fetch(url: str, start: int, stop: int, version: str) -> bytes:
    location = parse_location(url)
    assert isinstance(location, StorePath)
    store, key = location.open_store()
    try:
        return store.read(key, start, stop, version=version)
    except FileNotFoundError as error:
        raise DamagedDatasetError("the store has no such object any more") from error


def _end_threads(pool: ThreadPoolExecutor, process: int) -> None:
    if process == os.getpid():  # in a forked process the threads do not exist, and their locks may be held for ever
        pool.shutdown(wait=False, cancel_futures=True)
