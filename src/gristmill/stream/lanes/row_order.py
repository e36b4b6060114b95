"""The order of the stream as arithmetic: from row p to its lane, its draw and the index of the stored row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gristmill.order.block_order import BlockOrder
from gristmill.order.permutation import count_half_bits, make_source_key, place_draws

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.order import Mixture
    from gristmill.stream.lanes.sources import Lane


class OrderedRows(NamedTuple):
    """Stored rows in the order in which a stream reads them."""

    lanes: NDArray[np.int64]
    draws: NDArray[np.int64]
    """The number of rows of the lane that came before: epoch = draw // rows of the lane."""
    indices: NDArray[np.int64]
    """The index of each row among the stored rows of all lanes, one lane after the other."""


class RowOrder:
    """The order of a stream. Without a mixture there is one lane."""

    def __init__(
        self, lanes: list[Lane], mixture: Mixture | None, seed: int, *, shuffle: bool, window: int | None = None
    ) -> None:
        """Make an order. With a `window`, blocks are shuffled, and the rows of this many of them together."""
        self.mixture = mixture
        self._block_orders = []
        if window is not None:
            self._block_orders = [BlockOrder(_list_block_rows(lane), window, seed, lane.name) for lane in lanes]
        self._shuffle = shuffle
        self.sizes = np.array([lane.rows for lane in lanes], dtype=np.int64)
        self._firsts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self._halves = np.array([count_half_bits(max(lane.rows, 1)) for lane in lanes], dtype=np.uint64)
        self._keys = np.array([make_source_key(seed, lane.name) for lane in lanes], dtype=np.uint64)
        # The mixture sorts its lanes by name; here they are in the order that the user chose.
        names = [lane.name for lane in lanes]
        self._lane_numbers = np.array([names.index(name) for name in mixture.sources] if mixture else [0])

    def __call__(self, rows: NDArray[np.int64]) -> OrderedRows:
        """Find the stored rows of any rows, in about 0.15 µs each."""
        if self.mixture is None:
            lanes, draws = np.zeros(len(rows), dtype=np.int64), rows
        else:
            numbers, draws = self.mixture(rows)
            lanes = self._lane_numbers[numbers]
        if len(self._block_orders) == 1:
            indices = self._block_orders[0](draws)
        elif self._block_orders:
            indices = np.empty(len(rows), dtype=np.int64)
            for lane, order in enumerate(self._block_orders):
                chosen = lanes == lane
                if chosen.any():
                    indices[chosen] = order(draws[chosen])
        elif self._shuffle:
            indices = np.empty(len(rows), dtype=np.int64)
            place_draws(lanes, draws, self.sizes, self._halves, self._keys, indices)
        else:
            indices = draws % self.sizes[lanes]
        if len(self._firsts) > 1:
            indices += self._firsts[lanes]
        return OrderedRows(lanes, draws, indices)

    @property
    def window_rows(self) -> float:
        """The mean number of rows that are shuffled together, in the lane with the largest blocks; 0: all rows."""
        return max((order.window_rows for order in self._block_orders), default=0.0)

    def draws_before(self, row: int) -> list[int]:
        """Count the rows of each lane among the first `row` rows."""
        if self.mixture is None:
            return [row]
        drawn = [0] * len(self.sizes)
        for lane, count in zip(self._lane_numbers, self.mixture.draws_before(row).values(), strict=True):
            drawn[lane] = count
        return drawn


def _list_block_rows(lane: Lane) -> NDArray[np.int64]:
    """List the rows of all blocks of a lane."""
    blocks = [shard.blocks.rows for shard in lane.shards if shard.blocks is not None]
    return np.concatenate([np.empty(0, np.int64), *blocks])
