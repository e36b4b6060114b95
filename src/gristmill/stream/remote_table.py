"""The stored rows of a remote stream: from the index of a row to its addresses in memory, through a cache of blocks.

The index of the dataset says where each block is, so a row needs one request and nothing of the rest of its shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.shards.damage import make_damage_error
from gristmill.stream.block_reader import BlockReader
from gristmill.stream.kernels import A_SHARD, ADDRESS_COLUMNS, FINE, find_rows
from gristmill.stream.memory import memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.storage.block_cache import BlockCache
    from gristmill.stream.block_reader import OpenBlock
    from gristmill.stream.sources import RowShard


class RemoteTable:
    """The addresses of all rows of shards that are read by blocks. Threads may use it together."""

    def __init__(self, shards: list[RowShard], cache: BlockCache) -> None:
        self.shards = shards
        self.blocks = BlockReader(shards, cache)
        self.ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)

    def check_sizes(self) -> None:
        """Check nothing: the index was compared with the manifest, and each block is verified when it is fetched."""

    def shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's shard."""
        return np.searchsorted(self.ends, indices, side="right")

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start fetching the blocks of rows that will be needed."""
        self.blocks.request_rows(indices)

    def find_addresses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[OpenBlock]]:
        """Find the rows with these indices. The addresses are valid as long as the blocks are kept.

        The index -1 is a row without tokens.
        """
        is_row = indices >= 0
        addresses = np.zeros((len(indices), ADDRESS_COLUMNS), dtype=np.int64)
        addresses[:, A_SHARD] = -1
        numbers, places = np.unique(self.blocks.blocks_of(indices[is_row]), return_inverse=True)
        if not len(numbers):
            return addresses, []
        opened = self.blocks.open_blocks(numbers.tolist())
        # The rows of these blocks alone, numbered one block after the other, as the kernel numbers those of shards.
        ends = np.cumsum(self.blocks.rows[numbers])
        local = indices[is_row] - (self.blocks.ends[numbers] - ends)[places]
        one_each = np.stack([np.arange(len(numbers)), np.ones(len(numbers), np.int64)], axis=1)
        row_lines = np.empty((len(local), ADDRESS_COLUMNS), dtype=np.int64)
        lines = np.stack([block.line for block in opened if block.line is not None])
        problem, number = find_rows(local, ends, one_each, lines, memory().int32, row_lines)
        if problem != FINE:
            shard = self.shards[self.blocks.shard_of[numbers[number]]]
            raise make_damage_error(shard.path, "is damaged: a row's lengths do not fit it", shard.folder)
        row_lines[:, A_SHARD] = self.blocks.shard_of[numbers[row_lines[:, A_SHARD]]]
        addresses[is_row] = row_lines
        return addresses, opened
