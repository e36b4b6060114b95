"""Which rows of a global batch each rank reads: the next slice, or rows dealt by their attention cost.

All ranks wait for the slowest one at every step, and attention costs the square of a document's length. So two ranks
with as many tokens may have twice the work. The costs of all rows are in the index of the dataset: each process deals
the rows of the global batch for itself, by the same arithmetic. A global batch has the same rows for any number of
ranks, so states know nothing of this, and it may be switched on in mid-training.

A batch costs the order and the costs of the whole global batch, 0.3 µs a row, and for each row of a rank one sort of
the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.shards.lane_blocks import map_costs
from gristmill.storage.locations import parse_location

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import StreamDataset


def deal_rows(costs: NDArray[np.int64], world_size: int) -> NDArray[np.int64]:
    """Deal rows to ranks: equal numbers of rows, and costs as equal as a greedy choice makes them.

    In each round every rank gets one row, and the rank with the least so far gets the most expensive one.

    >>> deal_rows(np.array([9, 8, 2, 1]), 2)  # 10 and 10; slices would cost 17 and 3
    array([[0, 3],
           [1, 2]])
    """
    dealt = np.empty((world_size, len(costs) // world_size), dtype=np.int64)
    by_cost = np.argsort(-costs, kind="stable").reshape(-1, world_size)  # equal costs in the order of rows
    totals = np.zeros(world_size, dtype=np.int64)
    for number, rows in enumerate(by_cost):
        ranks = np.argsort(totals, kind="stable")
        dealt[ranks, number] = rows
        totals[ranks] += costs[rows]
    dealt.sort(axis=1)
    return dealt


class RowCosts:
    """The attention costs of all stored rows of a stream, as views of the mapped index."""

    def __init__(self, datasets: list[StreamDataset]) -> None:
        self._pieces: list[NDArray[np.uint64]] = []
        # In this order the rows of a stream are numbered, with lanes by source or without.
        for dataset in datasets:
            if any(shard.is_foreign for lane in dataset.lanes for shard in lane.shards):
                raise UsageError(
                    "balance needs the attention cost of each row, which files of others do not have",
                    help="leave it out, or write a dataset of them with a recipe: `read`, then `pack`",
                )
            folders = [shard.folder for lane in dataset.lanes for shard in lane.shards]
            for source in dataset.sources if folders else ():
                self._pieces += map_costs(parse_location(folders[0]), dataset.manifest, dataset.split, source)
        self._ends = np.cumsum([len(piece) for piece in self._pieces])

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the costs of stored rows; 0 for -1, an empty row."""
        costs = np.zeros(len(indices), dtype=np.int64)
        numbers = np.searchsorted(self._ends, indices, side="right")
        numbers[indices < 0] = -1
        order = np.argsort(numbers, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            number = numbers[group[0]]
            if number >= 0:
                piece = self._pieces[number]
                costs[group] = piece[indices[group] - (self._ends[number] - len(piece))]
        return costs


class RankRows:
    """The rows of each rank in a global batch. Without `costs`, rank r has the r-th slice."""

    def __init__(self, order: RowOrder, costs: RowCosts | None) -> None:
        self._order = order
        self._costs = costs

    def __call__(
        self, row: int, batch_size: int, rank: int, world_size: int, end: int | None = None
    ) -> NDArray[np.int64]:
        """Return the rows of a rank in the global batch that begins at `row`; those from `end` on are empty."""
        if self._costs is None:
            start = row + rank * batch_size
            return np.arange(start, start + batch_size)
        rows = np.arange(row, row + batch_size * world_size)
        chosen: NDArray[np.int64] = rows[deal_rows(self.find_costs(rows, end), world_size)[rank]]
        return chosen

    def find_costs(self, rows: NDArray[np.int64], end: int | None) -> NDArray[np.int64]:
        """Return the cost of each row."""
        assert self._costs is not None
        indices = self._order(rows).indices
        if end is not None:
            indices[rows >= end] = -1
        return self._costs(indices)
