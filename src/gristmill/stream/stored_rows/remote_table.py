"""The stored rows of a remote stream: from the index of a row to its addresses in memory, through a cache of blocks.

The index of the dataset says where each block is, so a row needs one request and nothing of the rest of its shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.shards.damage import make_damage_error
from gristmill.stream.batches.kernels import A_SHARD, ADDRESS_COLUMNS, FINE, UNOPENED, find_rows
from gristmill.stream.batches.memory import memory
from gristmill.stream.stored_rows.block_reader import BlockReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.core.errors import DamagedDatasetError
    from gristmill.storage.user_cache.block_cache import BlockCache
    from gristmill.stream.lanes.sources import RowShard
    from gristmill.stream.stored_rows.block_reader import OpenBlock


class RemoteTable:
    """The addresses of all rows of shards that are read by blocks. Threads may use it together."""

    def __init__(self, shards: list[RowShard], cache: BlockCache) -> None:
        self.shards = shards
        self.blocks = BlockReader(shards, cache)
        self.ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)
        # One more at the end: a row that only fills up a batch has the block -1, which is this entry.
        self._shard_of = np.append(self.blocks.shard_of, -1)

    @property
    def is_complete(self) -> bool:
        """Whether nothing will be fetched any more."""
        return self.blocks.is_complete

    def check_sizes(self) -> None:
        """Check nothing: the index was compared with the manifest, and each block is verified when it is fetched."""

    def shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's shard."""
        return np.searchsorted(self.ends, indices, side="right")

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start fetching the blocks of rows that will be needed."""
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
