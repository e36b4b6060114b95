"""Which rows of a global batch each rank reads: the next slice, rows dealt by their cost, or rows of similar lengths.

All ranks wait for the slowest one at every step, and attention costs the square of a document's length. So two ranks
with as many tokens may have twice the work. The costs of all rows are in the index of the dataset: each process deals
the rows of the global batch for itself, by the same arithmetic. A global batch has the same rows for any number of
ranks, so states do not depend on this, and it can be switched on during training.

A batch costs the order and the costs of the whole global batch, 0.3 µs for each row, and one sort of the ranks for each
row of a rank.

Rows that are not packed differ in length, and a batch is as wide as its longest row. `TokenBatches` puts rows of
similar lengths together: the rows of a window (4,096 of the order) are sorted by length, cut into batches of at most
`batch_tokens` with padding, and these batches are shuffled. The sorted rows take the places of the window, so a
position is still the number of rows that were used, and a batch is a range of positions. A step takes the next batches,
one for each rank. Neither ranks nor loaders change what a batch is, so a run resumes with any number of them. Within a
window the state depends on the budget, and says so (`StreamState.window`). A window costs 0.3 µs a row in every process
that reads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.seeds import derive_key
from gristmill.order import Permutation
from gristmill.shards.block_index import map_costs
from gristmill.storage.locations import parse_location
from gristmill.stream.lanes.row_order import Passes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.lanes.arguments import BatchTokens
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import StreamDataset


_WINDOWS_KEPT, _COUNTS_KEPT = 8, 64


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
                    "balance and batch_tokens need the length of each row, which third-party files do not have",
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


class BatchWindow(NamedTuple):
    """The batches of one window: a range of positions, and the rows that are there."""

    borders: NDArray[np.int64]
    """Where each batch begins, and where the last one ends."""
    rows: NDArray[np.int64]

    def borders_after(self, row: int, count: int) -> NDArray[np.int64]:
        """Return where the next batches end, at most `count`. A position inside a batch is in the rest of it."""
        first = int(np.searchsorted(self.borders, row, side="right"))
        return self.borders[first : first + count]


class TokenBatches:
    """The batches of rows of similar lengths. Threads may use it together."""

    def __init__(
        self, order: RowOrder, costs: RowCosts, passes: Passes, budget: BatchTokens, multiple: int, seed: int
    ) -> None:
        """Find the batches of an order, whose widths are multiples of `multiple`."""
        self._order = order
        self._costs = costs
        self._passes = passes
        self._budget = budget
        self._multiple = multiple
        self._seed = seed
        self._windows: dict[tuple[int, int], BatchWindow] = {}
        self._counts: dict[tuple[int, int], int] = {}
        """The batches between two positions: to count those of an epoch takes all its windows."""
        self._lock = threading.Lock()

    def find_span(self, row: int) -> tuple[int, int]:
        """Find the first and the last position of the window that a position is in."""
        epoch_rows, size = self._passes.epoch_rows, self._budget.window
        begin = row // epoch_rows * epoch_rows if epoch_rows else 0
        first, end = begin + (row - begin) // size * size, self._passes.end_of(row)
        return first, first + size if end is None else min(first + size, end)

    def find_borders(self, row: int, count: int) -> NDArray[np.int64]:
        """Return `row` and where the next batches of its pass end, at most `count` of them."""
        pieces, end = [np.array([row])], self._passes.end_of(row)
        while count and (end is None or row < end):
            pieces.append(self._find_window(row).borders_after(row, count))
            count -= len(pieces[-1])
            row = int(pieces[-1][-1])
        return np.concatenate(pieces)

    def count(self, row: int, stop: int) -> int:
        """Count the batches of a pass from a position to another one."""
        if (known := self._counts.get((row, stop))) is not None:
            return known
        span, total = (row, stop), 0
        while row < stop:
            borders = self._find_window(row).borders_after(row, self._budget.window)
            total += int(np.searchsorted(borders, stop)) + 1 if stop < borders[-1] else len(borders)
            row = int(borders[-1])
        while len(self._counts) >= _COUNTS_KEPT:
            self._counts.pop(next(iter(self._counts)), None)
        self._counts[span] = total
        return total

    def rows_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of one batch."""
        window = self._find_window(start)
        first = window.borders[0]
        return window.rows[start - first : stop - first]

    def describe_window(self, row: int) -> list[int] | None:
        """Return what the rows before a position depend on; None at the border of a window, where that is nothing."""
        first, end = self.find_span(row)
        return None if row == first else [first, end, self._budget.tokens, self._multiple]

    def _find_window(self, row: int) -> BatchWindow:
        span = self.find_span(row)
        with self._lock:
            window = self._windows.get(span)
            if window is None:
                window = self._arrange(*span)
                # A step may read several windows, and threads several steps.
                while len(self._windows) >= _WINDOWS_KEPT:
                    del self._windows[next(iter(self._windows))]
                self._windows[span] = window
            return window

    def _arrange(self, first: int, end: int) -> BatchWindow:
        """Sort the rows of a window by length, cut them into batches, and shuffle these.

        Rows of 9, 2, 8 and 3 tokens, with a budget of 18, become [9, 8] and [3, 2]. If the order repeats a stored row
        in one window, the repetitions are sorted separately: they are equally long, and would fill whole batches.
        """
        rows = np.arange(first, end)
        indices = self._order(rows).indices
        widths, times = self._measure(indices), _count_earlier(indices)
        by_width = np.lexsort((-widths, times))
        starts, start = [], 0
        for group_end in np.cumsum(np.bincount(times)).tolist():
            while start < group_end:
                starts.append(start)
                start = min(start + max(self._budget.tokens // int(widths[by_width[start]]), 1), group_end)
        batches = [np.sort(rows[by_width[a:b]]) for a, b in pairwise([*starts, len(rows)])]
        if self._order.is_shuffled:
            place = Permutation(len(batches), derive_key(self._seed, f"batches/{first}"))
            batches = [batches[place(number)] for number in range(len(batches))]
        else:
            batches.sort(key=lambda batch: int(batch[0]))
        borders = np.cumsum([first, *map(len, batches)])
        return BatchWindow(borders, np.concatenate(batches))

    def _measure(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how wide a batch of each row is. The cost of a row that is one document is its length squared."""
        costs = self._costs(indices)
        lengths = np.sqrt(costs).round().astype(np.int64)
        if (lengths * lengths != costs).any():
            raise UsageError(
                "batch_tokens is for rows of one document each, and some rows of this dataset hold several",
                help="leave it out, and pass a batch_size to the loader",
            )
        return np.maximum(-(-lengths // self._multiple) * self._multiple, 1)


def _count_earlier(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count for each value how often it was there before.

    >>> _count_earlier(np.array([7, 5, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    counts = np.empty(len(values), dtype=np.int64)
    counts[order] = np.arange(len(values)) - np.repeat(starts, np.diff(starts, append=len(values)))
    return counts


@dataclass(frozen=True, slots=True)
class TokenPasses(Passes):
    """The passes of a stream whose steps are batches by tokens: `global_size` counts these, not rows."""

    batches: TokenBatches

    def has_batch(self, row: int, global_size: int) -> bool:
        if self.num_rows is not None and row >= self.num_rows:
            return False
        return not self.drop_last or len(self.batches.find_borders(row, global_size)) > global_size

    def batch_end(self, row: int, global_size: int) -> int:
        next_row, end = int(self.batches.find_borders(row, global_size)[-1]), self.end_of(row)
        if end is None or next_row >= end or not self.drop_last or self.epoch_rows is None:
            return next_row
        return next_row if self.has_batch(next_row, global_size) else end

    def skip_steps(self, row: int, steps: int, global_size: int) -> int:
        return int(self.batches.find_borders(row, steps * global_size)[-1])

    def count_steps(self, row: int, stop: int, global_size: int) -> int:
        count = self.batches.count(row, stop)
        return count // global_size if self.drop_last else -(-count // global_size)

    def steps_to_end(self, row: int, global_size: int) -> int | None:
        if self.num_rows is None:
            return None
        total = 0
        while row < self.num_rows:
            end = self.end_of(row) or self.num_rows
            total += self.count_steps(row, end, global_size)
            row = end
        return total

    def row_of_step(self, first_row: int, step: int, global_size: int) -> int:
        row = first_row
        while (end := self.end_of(row)) is not None and step >= (steps := self.count_steps(row, end, global_size)):
            is_empty = not steps and self.epoch_rows is not None and row % self.epoch_rows == 0
            step, row = step - steps, end
            # An endless stream whose epochs have too few batches for all ranks has no step, wherever one looks.
            if self.epoch_rows is None or (is_empty if self.num_rows is None else row >= self.num_rows):
                return row
        return self.skip_steps(row, step, global_size)


class RankRows:
    """The rows of each rank in a global batch. Without `costs` and `batches`, rank r has the r-th slice."""

    def __init__(self, order: RowOrder, costs: RowCosts | None, batches: TokenBatches | None = None) -> None:
        self._order = order
        self._costs = costs
        self._batches = batches

    def __call__(
        self, row: int, batch_size: int, rank: int, world_size: int, end: int | None = None
    ) -> NDArray[np.int64]:
        """Return the rows of a rank in the global batch that begins at `row`; those from `end` on are empty."""
        if self._batches is not None:
            borders = self._batches.find_borders(row, world_size)
            if rank < len(borders) - 1:
                return self._batches.rows_between(int(borders[rank]), int(borders[rank + 1]))
            return borders[-1:]  # the end of the pass: an empty row
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
