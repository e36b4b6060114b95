"""The stored rows of a remote stream: from the index of a row to its addresses in memory, through a cache of blocks.

A block is about 4 MiB of a shard, and the smallest piece that is fetched. The index of the dataset says where each is,
so a row needs one request and nothing of the rest of its shard. Threads fetch the blocks of later batches, which are
known in advance. Memory: 40 bytes for each block of the dataset; blocks that are open are mapped from the cache, and
closed when they were used longest ago.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.storage.locations import StorePath
from gristmill.stream.kernels import A_SHARD, ADDRESS_COLUMNS, B_END_ROW, FINE, find_rows
from gristmill.stream.mapping import map_descriptor
from gristmill.stream.memory import memory
from gristmill.stream.shard_blocks import make_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.storage.block_cache import BlockCache
    from gristmill.stream.sources import RowShard

_NUM_THREADS = 8
_MAX_WAITING = 32
"""The most blocks that are requested ahead at a time."""


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block that is mapped into memory."""

    mapped: pa.Buffer
    line: NDArray[np.int64]
    """Where its columns are: see `kernels`."""
    batch: pa.RecordBatch


class RemoteTable:
    """The addresses of all rows of remote shards. Threads may use it together."""

    def __init__(self, shards: list[RowShard], cache: BlockCache) -> None:
        self.shards = shards
        self.cache = cache
        self.ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)
        blocks = [shard.blocks for shard in shards if shard.blocks is not None]
        self._shard_of = np.repeat(np.arange(len(blocks)), [len(entry.rows) for entry in blocks])
        self.offsets, self.bytes, self.rows = (
            np.concatenate([getattr(entry, name) for entry in blocks]) for name in ("offset", "bytes", "rows")
        )
        self._checksums = np.concatenate([entry.xxh3 for entry in blocks])
        self.block_ends = np.cumsum(self.rows)
        self._open: OrderedDict[int, Future[OpenBlock]] = OrderedDict()
        self._open_bytes = 0
        self._opening = threading.Lock()
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="gristmill-fetch")
        weakref.finalize(self, _end_threads, self._pool, os.getpid())

    def check_sizes(self) -> None:
        """Check nothing: the index was compared with the manifest, and each block is verified when it is fetched."""

    def blocks_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's block."""
        return np.searchsorted(self.block_ends, indices, side="right")

    def shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's shard."""
        return np.searchsorted(self.ends, indices, side="right")

    def find_addresses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[OpenBlock]]:
        """Find the rows with these indices. The addresses are valid as long as the blocks are kept.

        The index -1 is a row without tokens.
        """
        is_row = indices >= 0
        addresses = np.zeros((len(indices), ADDRESS_COLUMNS), dtype=np.int64)
        addresses[:, A_SHARD] = -1
        numbers, places = np.unique(self.blocks_of(indices[is_row]), return_inverse=True)
        if not len(numbers):
            return addresses, []
        opened = [future.result() for future in [self._request(number) for number in numbers.tolist()]]
        # The rows of these blocks alone, numbered one block after the other, as the kernel numbers those of shards.
        rows = self.rows[numbers]
        ends = np.cumsum(rows)
        local = indices[is_row] - (self.block_ends[numbers] - ends)[places]
        one_each = np.stack([np.arange(len(numbers)), np.ones(len(numbers), np.int64)], axis=1)
        row_lines = np.empty((len(local), ADDRESS_COLUMNS), dtype=np.int64)
        lines = np.stack([block.line for block in opened])
        problem, number = find_rows(local, ends, one_each, lines, memory().int32, row_lines)
        if problem != FINE:
            shard = self.shards[self._shard_of[numbers[number]]]
            raise make_damage_error(shard.path, "is damaged: a row's lengths do not fit it", shard.folder)
        row_lines[:, A_SHARD] = self._shard_of[numbers[row_lines[:, A_SHARD]]]
        addresses[is_row] = row_lines
        return addresses, opened

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start fetching the blocks of rows that will be needed, as many as are allowed at a time."""
        numbers = np.unique(self.blocks_of(indices)).tolist()
        with self._opening:
            waiting = sum(not future.done() for future in self._open.values())
            missing = [number for number in numbers if number not in self._open]
        for number in missing[: max(0, _MAX_WAITING - waiting)]:
            self._request(number)

    def open_block(self, number: int) -> OpenBlock:
        """Open a block, and wait for it."""
        return self._request(number).result()

    def find_name(self, number: int) -> str:
        """Return the name of a block in the cache: by the content of its shard."""
        shard = self.shards[self._shard_of[number]]
        return f"{shard.checksum}-{self.offsets[number]}-{self.bytes[number]}"

    def _request(self, number: int) -> Future[OpenBlock]:
        with self._opening:
            future = self._open.get(number)
            if future is not None and not (future.done() and future.exception() is not None):
                self._open.move_to_end(number)
                return future
            future = self._open[number] = self._pool.submit(self._load, number)
            self._open_bytes += int(self.bytes[number])
            while self._open_bytes > self.cache.max_bytes and len(self._open) > 1:
                self._close_oldest()
            return future

    def _close_oldest(self) -> None:
        """Forget the block that was used longest ago. Who still reads it keeps it."""
        number, _ = self._open.popitem(last=False)
        self._open_bytes -= int(self.bytes[number])

    def _load(self, number: int) -> OpenBlock:
        shard = self.shards[self._shard_of[number]]
        start, num_bytes = int(self.offsets[number]), int(self.bytes[number])
        num_fetches = self.cache.num_fetches
        try:
            descriptor = self.cache.open_block(
                self.find_name(number),
                num_bytes,
                int(self._checksums[number]),
                partial(_fetch, shard.path, start, start + num_bytes),
            )
        except DamagedDatasetError as error:
            raise make_damage_error(shard.path, f"is damaged at byte {start}: {error}", shard.folder) from error
        try:
            mapped = map_descriptor(descriptor, num_bytes, at_random=True)
        finally:
            os.close(descriptor)
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(mapped), shard.schema)
            line = np.array(make_line(batch, mapped), dtype=np.int64)
        except READ_ERRORS as error:
            raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
        if batch.num_rows != self.rows[number]:
            raise make_damage_error(shard.path, f"has {batch.num_rows} rows at byte {start}", shard.folder)
        line[B_END_ROW] = batch.num_rows
        if self.cache.num_fetches > num_fetches:
            self._close_evicted()
        return OpenBlock(mapped, line, batch)

    def _close_evicted(self) -> None:
        """Close some blocks whose files are gone: a mapping keeps its file's space."""
        with self._opening:
            for number, future in list(self._open.items())[:2]:
                if future.done() and not self.cache.has_block(self.find_name(number)):
                    del self._open[number]
                    self._open_bytes -= int(self.bytes[number])


def _fetch(url: str, start: int, stop: int) -> bytes:
    store, key = StorePath(url).open_store()
    return store.read(key, start, stop)


def _end_threads(pool: ThreadPoolExecutor, process: int) -> None:
    if process == os.getpid():  # in a forked process the threads do not exist, and their locks may be held for ever
        pool.shutdown(wait=False, cancel_futures=True)
