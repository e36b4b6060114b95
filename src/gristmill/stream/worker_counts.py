"""The batches that worker processes of a DataLoader have made, counted where their parent process can see it.

Each worker has a line of numbers in anonymous shared memory. No locks are needed: a worker writes only its own line. A
DataLoader prefetches, so the counts may be up to `num_workers * prefetch_factor` batches ahead of what was used.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.batches.collate import Batch

_NUM_LINES = 256
_STARTED, _ROW, _POSITIONS, _COUNTS = range(4)
"""The columns of a line: the start of its first batch (ns), the next row, tokens with padding; then the rows of each
source and those of none, then the tokens of each."""


class WorkerTotals(NamedTuple):
    """The counts of all workers together."""

    rows: NDArray[np.int64]
    """The rows of each source, and at the end those that only fill up a batch."""
    tokens: NDArray[np.int64]
    positions: int
    row: int
    started: float | None
    """By `time.perf_counter`, which all processes of a machine share."""


class WorkerCounts:
    """The counts of each worker of one DataLoader."""

    def __init__(self, num_sources: int, shared: Any = None, owner: int | None = None) -> None:
        self._num_sources = num_sources
        self._num_columns = _COUNTS + 2 * (num_sources + 1)
        self._shared = RawArray("q", _NUM_LINES * self._num_columns) if shared is None else shared
        self._owner = os.getpid() if owner is None else owner

    def add(self, batch: Batch, worker: int, next_row: int | None) -> None:
        """Count a batch of a worker. A process that is not a worker of the owner counts nothing.

        `next_row` is None for rows in another order than the stream's.
        """
        parent = multiprocessing.parent_process()
        if parent is None or parent.pid != self._owner:
            return
        line = self._format_lines()[worker % _NUM_LINES]
        line[_STARTED] = line[_STARTED] or time.perf_counter_ns()
        line[_ROW] = max(int(line[_ROW]), next_row or 0)
        line[_POSITIONS] += batch.num_positions
        # Rows that only fill up a batch have source -1, so they are counted in the last place.
        np.add.at(line[_COUNTS : _COUNTS + self._num_sources + 1], batch.sources, 1)
        np.add.at(line[_COUNTS + self._num_sources + 1 :], batch.sources, batch.tokens)

    def totals(self) -> WorkerTotals:
        """Add up the counts of all workers."""
        lines = self._format_lines()
        totals = lines.sum(axis=0)
        started = lines[lines[:, _STARTED] > 0, _STARTED]
        return WorkerTotals(
            totals[_COUNTS : _COUNTS + self._num_sources + 1],
            totals[_COUNTS + self._num_sources + 1 :],
            int(totals[_POSITIONS]),
            int(lines[:, _ROW].max()) or int(totals[_COUNTS : _COUNTS + self._num_sources].sum()),
            int(started.min()) / 1e9 if len(started) else None,
        )

    def clear(self) -> None:
        """Set all counts to 0."""
        self._format_lines()[:] = 0

    def _format_lines(self) -> NDArray[np.int64]:
        return np.frombuffer(self._shared, dtype=np.int64).reshape(_NUM_LINES, self._num_columns)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return WorkerCounts, (self._num_sources, self._shared, self._owner)
        return WorkerCounts, (self._num_sources,)
