"""What the worker processes of a DataLoader have made, counted where the process that started them can see it.

A line of numbers for each worker in memory without a name, written without locks: each writes its own line only. A
DataLoader asks ahead, so the counts may be up to `num_workers * prefetch_factor` batches ahead of what was used.
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

    from gristmill.stream.collate import Batch

_NUM_LINES = 256
_STARTED, _ROW, _PLACES, _COUNTS = range(4)
"""Columns of a line: when its first batch was begun (ns), the next row, places for tokens; then rows of each source and
of none, then tokens of each."""


class WorkerTotals(NamedTuple):
    """By all workers."""

    rows: NDArray[np.int64]
    """Of each source, and at the end those that only fill up a batch."""
    tokens: NDArray[np.int64]
    places: int
    row: int
    started: float | None
    """By `time.perf_counter`, which all processes of a machine share."""


class WorkerCounts:
    """See the module."""

    def __init__(self, num_sources: int, shared: Any = None, owner: int | None = None) -> None:
        self._num_sources = num_sources
        self._num_columns = _COUNTS + 2 * (num_sources + 1)
        self._shared = RawArray("q", _NUM_LINES * self._num_columns) if shared is None else shared
        self._owner = os.getpid() if owner is None else owner

    def add(self, batch: Batch, worker: int, next_row: int | None) -> None:
        """A batch that this worker has made; of a process that is no worker of the owner, nothing is counted.

        `next_row` None: of rows in an order that is not the stream's.
        """
        parent = multiprocessing.parent_process()
        if parent is None or parent.pid != self._owner:
            return
        line = self._lines()[worker % _NUM_LINES]
        line[_STARTED] = line[_STARTED] or time.perf_counter_ns()
        line[_ROW] = max(int(line[_ROW]), next_row or 0)
        line[_PLACES] += batch.num_positions
        # Rows that only fill up a batch are of source -1: counted at the end.
        np.add.at(line[_COUNTS : _COUNTS + self._num_sources + 1], batch.sources, 1)
        np.add.at(line[_COUNTS + self._num_sources + 1 :], batch.sources, batch.tokens)

    def totals(self) -> WorkerTotals:
        """All so far."""
        lines = self._lines()
        totals = lines.sum(axis=0)
        started = lines[lines[:, _STARTED] > 0, _STARTED]
        return WorkerTotals(
            totals[_COUNTS : _COUNTS + self._num_sources + 1],
            totals[_COUNTS + self._num_sources + 1 :],
            int(totals[_PLACES]),
            int(lines[:, _ROW].max()) or int(totals[_COUNTS : _COUNTS + self._num_sources].sum()),
            int(started.min()) / 1e9 if len(started) else None,
        )

    def clear(self) -> None:
        """Count from 0."""
        self._lines()[:] = 0

    def _lines(self) -> NDArray[np.int64]:
        return np.frombuffer(self._shared, dtype=np.int64).reshape(_NUM_LINES, self._num_columns)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return WorkerCounts, (self._num_sources, self._shared, self._owner)
        return WorkerCounts, (self._num_sources,)
