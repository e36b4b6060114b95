"""The stored rows of a stream whose shards are read by blocks, through a cache: on a store, or in third-party tables.

A block is about 4 MiB of a shard, and the smallest piece that is fetched. The index of the dataset says where each
block is, so a row needs one request. Threads fetch the blocks of later batches, which are known in advance. Memory: 170
bytes for each block of the dataset; open blocks are mapped from the cache, and those used longest ago are closed first.

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
from gristmill.shards.canonical import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.storage.files import read_range
from gristmill.storage.user_cache import name_block
from gristmill.stream.lanes.table_blocks import convert_block
from gristmill.stream.mapped_memory import map_descriptor, map_range, memory
from gristmill.stream.rows.row_table import StoredTable, check_size, make_line
from gristmill.stream.stream_kernels import (
    A_SHARD,
    ADDRESS_COLUMNS,
    B_END_ROW,
    BLOCK_COLUMNS,
    FINE,
    UNOPENED,
    find_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.storage.user_cache import BlockCache
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
    """A time between two closings of blocks. A reader that holds it keeps all blocks mapped that were open in it."""

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
        form = f"-{shard.table.ids}" if shard.table is not None else "" if self.checksums[number] else "-sealed"
        return name_block(shard.checksum, int(self.offsets[number]), int(self.bytes[number])) + form

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
        """Forget a block. Its present readers keep it: by itself, or by a generation in which it was open."""
        self.places[number, 1] = 0  # before the generation ends: a reader that begins now does not find it
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
            descriptor, num_bytes = self.cache.open_sealed(name, partial(convert_block, shard.table, start, num_bytes))
        else:
            fetch = partial(_fetch, shard.path, start, start + num_bytes, shard.version)
            try:
                if checksum := int(self.checksums[number]):
                    descriptor = self.cache.open_block(name, num_bytes, checksum, fetch)
                else:  # of a tar of which only headers were read
                    descriptor, num_bytes = self.cache.open_sealed(name, fetch)
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
    try:
        data = read_range(url, start, stop, version)
    except FileNotFoundError as error:
        raise DamagedDatasetError("the store no longer has this object") from error
    if len(data) != stop - start:
        raise DamagedDatasetError(f"the store returned {len(data)} bytes, not {stop - start}")
    return data


def _end_threads(pool: ThreadPoolExecutor, process: int) -> None:
    if process == os.getpid():  # in a forked process the threads do not exist, and their locks may be held forever
        pool.shutdown(wait=False, cancel_futures=True)


class RemoteTable(StoredTable):
    """The addresses of all rows of shards that are read by blocks."""

    def __init__(self, shards: list[RowShard], cache: BlockCache) -> None:
        super().__init__(shards)
        self.blocks = BlockReader(shards, cache)
        # One more at the end: a row that only fills up a batch has the block -1, which is this entry.
        self._shard_of = np.append(self.blocks.shard_of, -1)

    @property
    def is_complete(self) -> bool:
        return self.blocks.is_complete

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        self.blocks.request_rows(indices)

    def find_addresses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], object]:
        """Find the rows with these indices. The addresses are valid as long as the second value is kept.

        The index -1 is a row without tokens.
        """
        blocks = self.blocks
        generation = blocks.generation  # first: what is closed from now on stays mapped
        addresses = np.empty((len(indices), ADDRESS_COLUMNS), dtype=np.int64)
        problem, number = find_rows(indices, blocks.ends, blocks.places, blocks.lines, memory().int32, addresses)
        if problem == UNOPENED:
            return self._open_addresses(indices)
        if problem != FINE:
            raise self._make_damage_error(number)
        self._name_shards(addresses)
        return addresses, generation

    def _open_addresses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[OpenBlock]]:
        """Like `find_addresses`, for rows whose blocks must be opened first.

        In a small cache they may be closed again before the rows are found, so rows are found in these blocks alone.
        """
        is_row = indices >= 0
        numbers, places = np.unique(self.blocks.blocks_of(indices[is_row]), return_inverse=True)
        opened = self.blocks.open_blocks(numbers.tolist())
        # The rows of these blocks alone, numbered one block after the other, as the kernel numbers those of shards.
        ends = np.cumsum(self.blocks.rows[numbers])
        local = np.full(len(indices), -1)
        local[is_row] = indices[is_row] - (self.blocks.ends[numbers] - ends)[places]
        one_each = np.stack([np.arange(len(numbers)), np.ones(len(numbers), np.int64)], axis=1)
        addresses = np.empty((len(indices), ADDRESS_COLUMNS), dtype=np.int64)
        lines = np.stack([block.line for block in opened if block.line is not None])
        problem, number = find_rows(local, ends, one_each, lines, memory().int32, addresses)
        if problem != FINE:
            raise self._make_damage_error(int(numbers[number]))
        addresses[:, A_SHARD] = np.append(numbers, -1)[addresses[:, A_SHARD]]
        self._name_shards(addresses)
        return addresses, opened

    def _name_shards(self, addresses: NDArray[np.int64]) -> None:
        """Replace the blocks of addresses by their shards."""
        numbers = addresses[:, A_SHARD]
        self.blocks.note_use(numbers)
        addresses[:, A_SHARD] = self._shard_of[numbers]

    def _make_damage_error(self, block: int) -> DamagedDatasetError:
        shard = self.shards[self.blocks.shard_of[block]]
        return make_damage_error(shard.path, "is damaged: a row's lengths do not fit it", shard.folder)
