"""A shuffle that reads blocks of consecutive rows once: their order is shuffled, then the rows of n blocks at a time.

    epoch e of a lane:   blocks ─permutation─▶ windows of n blocks ─permutation of the window's rows─▶ rows

Every row is read once an epoch, and a reader holds n blocks. With n = all blocks this is a full shuffle. Row p is a
pure function: a permutation of the blocks (O(blocks), kept for the epochs in use), two binary searches, and a
permutation of the window's rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gristmill.core.seeds import derive_key
from gristmill.order.permutation import Permutation, make_epoch_key, place_in_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _EpochOrder(NamedTuple):
    """The blocks of one epoch in their order."""

    window_ends: NDArray[np.int64]
    """The rows until the end of each window."""
    keys: NDArray[np.uint64]
    """The key of each window's permutation."""
    ends: NDArray[np.int64]
    """The rows until the end of each block, in this order."""
    shifts: NDArray[np.int64]
    """What is added to a place in a block to get the stored row."""


class BlockOrder:
    """The order of one lane.

    >>> order = BlockOrder([3, 2, 4], window=2, seed=7, name="web")
    >>> sorted(order(np.arange(9)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    def __init__(self, rows: list[int] | NDArray[np.int64], window: int, seed: int, name: str) -> None:
        self._rows = np.asarray(rows, dtype=np.int64)
        self._starts = np.cumsum(self._rows) - self._rows
        self.num_rows = int(self._rows.sum())
        self._window = window
        self._seed = seed
        self._name = name
        self._order_epoch = lru_cache(maxsize=4)(self._compute_epoch)

    def __call__(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored row of each draw."""
        epochs, places = np.divmod(draws, self.num_rows)
        indices = np.empty(len(draws), dtype=np.int64)
        if len(draws) and (epochs == epochs[0]).all():
            place_in_windows(places, *self._order_epoch(int(epochs[0])), indices)
            return indices
        for epoch in np.unique(epochs).tolist():
            is_chosen = epochs == epoch
            indices[is_chosen] = self(draws[is_chosen])
        return indices

    @property
    def window_rows(self) -> float:
        """The mean number of rows in a window."""
        return self._window * self.num_rows / max(len(self._rows), 1)

    def _compute_epoch(self, epoch: int) -> _EpochOrder:
        key = make_epoch_key(self._seed, f"blocks/{self._name}", epoch)
        blocks = np.asarray(Permutation(len(self._rows), key)(np.arange(len(self._rows))))
        ends = np.cumsum(self._rows[blocks])
        last = np.minimum(np.arange(self._window, len(blocks) + self._window, self._window), len(blocks)) - 1
        window_keys = np.asarray(Permutation(1 << 62, derive_key(key, "windows"))(np.arange(len(last))))
        shifts = self._starts[blocks] - (ends - self._rows[blocks])
        return _EpochOrder(ends[last], window_keys.astype(np.uint64), ends, shifts)
