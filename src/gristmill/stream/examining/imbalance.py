"""How unequal the ranks of a training are: what `Stream(…, balance=True)` gains, before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.stream.lanes.balance import RankRows, RowCosts, deal_rows

if TYPE_CHECKING:
    from gristmill.stream.stream import Stream


def measure_imbalance(stream: Stream, batch_size: int, world_size: int, steps: int) -> tuple[float, float]:
    """Compare the most expensive rank with the mean, over some steps: with slices, and with dealt rows.

    1.0 is perfect balance. With 1.5, two thirds of the time that a step waits for attention is work.
    """
    rank_rows = RankRows(stream.order, RowCosts(stream.datasets))
    worst = np.zeros(2)
    total = 0.0
    for step in range(steps):
        row = stream.passes.row_of_step(stream.first_row, step, batch_size * world_size)
        rows = np.arange(row, row + batch_size * world_size)
        costs = rank_rows.find_costs(rows, stream.passes.end_of(row))
        dealt = costs[deal_rows(costs, world_size)]
        worst += costs.reshape(world_size, -1).sum(axis=1).max(), dealt.sum(axis=1).max()
        total += costs.sum() / world_size
    sliced, balanced = worst / max(total, 1.0)
    return float(sliced), float(balanced)
