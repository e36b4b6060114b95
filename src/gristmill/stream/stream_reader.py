"""What readers of tokens and of samples have in common: files that are opened in each process, and fetching ahead."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gristmill.stream.batches.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.storage.user_cache.block_cache import BlockCache
    from gristmill.stream.batches.collate import Batch
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane, RowShard

_FIRST_BATCHES = 16
"""The batches whose blocks are requested before the first one is read."""
_PARTS_OF_WINDOW = 16
"""How often in a window the blocks of the next one are requested."""
_ROWS_OF_LATER_WINDOW = 128
"""The rows of the window after that whose blocks are requested then: after a few times these are all of them."""


class StoredTable(Protocol):
    """All stored rows of a stream, addressable by their indices."""

    shards: list[RowShard]
    ends: NDArray[np.int64]
    """The number of rows until the end of each shard."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing will be fetched from a store any more."""

    def check_sizes(self) -> None:
        """Raise an error that names the first shard that is missing or too short."""

    def shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's shard."""

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start reading rows that will be needed."""


class StreamReader(ABC):
    """Makes batches of any rows of a stream. Threads may use it together.

    Args:
        lanes: The rows to read.
        order: Which stored row each row of the stream is.
        num_rows: The end of the stream, after which rows are empty; None: it is endless.
        cache: Where blocks of shards that are not on this disk are kept; None: all are.
    """

    table: StoredTable

    def __init__(self, lanes: list[Lane], order: RowOrder, num_rows: int | None, cache: BlockCache | None) -> None:
        self._shards = [shard for lane in lanes for shard in lane.shards]
        self._order = order
        self._num_rows = num_rows
        self._cache = cache

    @abstractmethod
    def take(
        self,
        rows: NDArray[np.int64],
        *,
        first_row: int,
        next_row: int,
        end: int | None = None,
        new: Callable[..., Any] = np.empty,
    ) -> Batch:
        """Make a batch of any rows in any order, for the step that ends before `next_row`.

        Rows from `end` on are empty. `new` makes the arrays of the batch.
        """

    @abstractmethod
    def _open_table(self) -> None:
        """Make a table of all shards that has opened none of them."""

    def close_files(self) -> None:
        """Close all shards. Each is opened again when one of its rows is needed."""
        self._process = os.getpid()
        self._has_fetched_ahead = False
        self._batches_until_fetch = 0
        self.read_ahead = ReadAhead()
        self._open_table()

    def close_files_of_parent(self) -> None:
        """Close all shards in a forked process, which must not share the lock and the files of its parent."""
        if self._process != os.getpid():
            self.close_files()

    @property
    def is_remote(self) -> bool:
        """Whether rows are fetched from a store."""
        return self._cache is not None

    def fetch_ahead(self, find_rows: Callable[[int], NDArray[np.int64]], step: int) -> None:
        """Start fetching the blocks of later batches, of which `find_rows(n)` is the n-th, each `step` rows later.

        Where blocks are shuffled, the blocks of the next two windows, each of which has others. If those of one were
        requested, fewer and fewer would be fetched at a time, until it begins.
        """
        self.close_files_of_parent()
        if self._batches_until_fetch > 0:
            self._batches_until_fetch -= 1
            return
        if self.table.is_complete:
            return
        num_rows = max(len(find_rows(0)), 1)
        window, farthest = self._find_reach(num_rows, step)
        if not self._has_fetched_ahead:
            self._has_fetched_ahead = True
            for number in range(1, min(farthest, _FIRST_BATCHES)):
                self.prefetch(find_rows(number))
        # A part of a window has rows of all its blocks: they are requested a few times, not with every batch.
        count = max(1, window // _PARTS_OF_WINDOW)
        self._batches_until_fetch = count - 1
        self.prefetch(np.concatenate([find_rows(farthest + number) for number in range(count)]))
        if window:
            few = min(count, math.ceil(_ROWS_OF_LATER_WINDOW / num_rows))
            self.prefetch(np.concatenate([find_rows(2 * farthest + number) for number in range(few)]))

    def count_batches_ahead(self, num_rows: int, step: int) -> int:
        """Count the batches of that many rows behind the present one whose blocks `fetch_ahead` may have requested."""
        window, farthest = self._find_reach(num_rows, step)
        return 2 * farthest + math.ceil(_ROWS_OF_LATER_WINDOW / num_rows) if window else farthest

    def _find_reach(self, num_rows: int, step: int) -> tuple[int, int]:
        """Find the batches of a window (0: all rows are shuffled), and how many are always requested ahead."""
        window = math.ceil(self._order.window_rows / step)
        return window, max(self.read_ahead.batches_ahead(num_rows), window)

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        """Start reading rows of a later batch. At the end of an epoch the rows that follow may be others."""
        if self._num_rows is not None:
            rows = rows[rows < self._num_rows]
        self.table.request_rows(self._order(rows).indices)
