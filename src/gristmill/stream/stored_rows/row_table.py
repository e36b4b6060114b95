"""All stored rows of a stream: from the index of a row to its addresses in memory.

A row costs O(1) once its shard is open, and O(log shards) to find the shard. Memory: 640 bytes for each shard, and 88
bytes for each batch of the shards that are open. A shard is opened when one of its rows is first read, never at the
start.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gristmill.shards.damage import make_damage_error
from gristmill.stream.batches.kernels import (
    A_ID_BYTES,
    A_IDS,
    A_SHARD,
    A_STORED,
    ADDRESS_COLUMNS,
    BLOCK_COLUMNS,
    DAMAGED,
    FINE,
    find_rows,
)
from gristmill.stream.batches.mapping import request_pages
from gristmill.stream.batches.memory import memory
from gristmill.stream.stored_rows.shard_blocks import check_size, open_blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.stream.lanes.sources import RowShard


class RowTable:
    """The addresses of all rows. Threads may use it together."""

    def __init__(self, shards: list[RowShard], *, at_random: bool = False) -> None:
        self.shards = shards
        self._at_random = at_random
        self.ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)
        self._mapped: list[pa.Buffer] = []
        # The first block and the number of blocks of each shard (0: not open yet), and all blocks. Both arrays are
        # replaced together, in one assignment, so that a thread never sees one without the other.
        self._tables = np.zeros((len(shards), 2), dtype=np.int64), np.empty((64, BLOCK_COLUMNS), dtype=np.int64)
        self._num_blocks = 0
        self._opening = threading.Lock()

    @property
    def is_complete(self) -> bool:
        """Always: nothing is fetched."""
        return True

    def check_sizes(self) -> None:
        """Raise an error that names the first shard that is missing or too short."""
        for shard in self.shards:
            check_size(shard)

    def find_addresses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], RowTable]:
        """Find the rows with these indices. The addresses are valid as long as the table is kept.

        The index -1 is a row without tokens.
        """
        addresses = np.empty((len(indices), ADDRESS_COLUMNS), dtype=np.int64)
        while True:
            problem, shard = find_rows(indices, self.ends, *self._tables, memory().int32, addresses)
            if problem == FINE:
                return addresses, self
            if problem == DAMAGED:
                damaged = self.shards[shard]
                raise make_damage_error(damaged.path, "is damaged: a row's lengths do not fit it", damaged.folder)
            self._open(indices)

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start reading the rows with these indices from the disk."""
        addresses, _ = self.find_addresses(indices)
        addresses = addresses[addresses[:, A_SHARD] >= 0]
        sizes = addresses[:, A_STORED] * addresses[:, A_ID_BYTES]
        for address, num_bytes in zip(addresses[:, A_IDS].tolist(), sizes.tolist(), strict=True):
            request_pages(address, num_bytes)

    def shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's shard."""
        return np.searchsorted(self.ends, indices, side="right")

    def _open(self, indices: NDArray[np.int64]) -> None:
        """Map the shards of these rows that are not mapped yet."""
        with self._opening:
            shard_blocks, blocks = self._tables
            # A copy, because a kernel in another thread may be reading the present array.
            shard_blocks = shard_blocks.copy()
            try:
                for shard in np.unique(self.shards_of(indices[indices >= 0])).tolist():
                    if not shard_blocks[shard, 1]:
                        mapped, of_shard = open_blocks(self.shards[shard], at_random=self._at_random)
                        self._mapped.append(mapped)
                        shard_blocks[shard] = self._num_blocks, len(of_shard)
                        blocks = self._append(blocks, of_shard)
            finally:  # shards before a damaged one stay open
                self._tables = shard_blocks, blocks

    def _append(self, blocks: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
        """Append blocks: in place where there is room, because no thread reads beyond the present end."""
        first, end = self._num_blocks, self._num_blocks + len(more)
        if end > len(blocks):
            larger = np.empty((max(end, 2 * len(blocks)), BLOCK_COLUMNS), dtype=np.int64)
            larger[:first] = blocks[:first]
            blocks = larger
        blocks[first:end] = more
        self._num_blocks = end
        return blocks
