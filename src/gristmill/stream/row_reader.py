"""Batches of any rows: the order says which stored row each is, the table where that is in memory, a kernel copies it.

Rows that will be needed soon are requested from the disk while a batch is made (`read_ahead`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.records import IMAGES
from gristmill.stream.batches.collate import INPUT_IDS, Batch, collate, find_width
from gristmill.stream.batches.kernels import A_FILLED, A_SHARD
from gristmill.stream.stored_rows.remote_table import RemoteTable
from gristmill.stream.stored_rows.row_sources import RowSources
from gristmill.stream.stored_rows.row_table import RowTable
from gristmill.stream.stream_reader import StreamReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.storage.user_cache.block_cache import BlockCache
    from gristmill.stream.batches.collate import Collate
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane
    from gristmill.stream.stored_rows.row_images import RowImages


class RowReader(StreamReader):
    """Makes batches of rows of tokens.

    Args:
        lanes: The rows to read; `order`, `num_rows` and `cache` as in `StreamReader`.
        sources: The names of all sources; batches refer to them by number.
        collate: What a batch holds.
        pad_id: The id of padding that is added.
        row_length: Tokens in each row; None: rows differ in length.
        shuffle: Whether rows are read in no order on disk.
        open_images: Opens the images of all rows, of remote ones in this table; None: rows have none.
    """

    table: RowTable | RemoteTable

    def __init__(
        self,
        lanes: list[Lane],
        order: RowOrder,
        sources: list[str],
        collate: Collate,
        pad_id: int,
        *,
        row_length: int | None,
        num_rows: int | None,
        shuffle: bool,
        open_images: Callable[[RowTable | RemoteTable], RowImages] | None = None,
        cache: BlockCache | None = None,
    ) -> None:
        super().__init__(lanes, order, num_rows, cache)
        self._sources = sources
        self._collate = collate
        self._pad_id = pad_id
        self._row_length = row_length
        self._shuffle = shuffle
        self._open_images = open_images
        self.close_files()

    @property
    def has_images(self) -> bool:
        """Whether batches hold images, or references to them."""
        return self._open_images is not None

    def _open_table(self) -> None:
        if self._cache is None:
            self.table = RowTable(self._shards, at_random=self._shuffle)
        else:
            self.table = RemoteTable(self._shards, self._cache)
        self._images = None if self._open_images is None else self._open_images(self.table)
        self._row_sources = RowSources(self._shards, self._sources, self.table)

    def take(
        self,
        rows: NDArray[np.int64],
        *,
        first_row: int,
        next_row: int,
        end: int | None = None,
        new: Callable[..., Any] = np.empty,
    ) -> Batch:
        self.close_files_of_parent()
        table = self.table  # held until the rows are copied, even if another thread closes the files
        indices = self._order(rows).indices
        end = self._num_rows if end is None else end
        if end is not None:
            indices[rows >= end] = -1
            next_row = min(next_row, end)
        addresses, held = table.find_addresses(indices)  # what is held is mapped until the rows are copied
        width = self._row_length
        if width is None:
            # A rank without rows is as wide as the global batch: no tensor may have a dimension of 0.
            is_empty = next_row > first_row and not (indices >= 0).any()
            # With `drop_last`, `next_row` may be beyond the batch, at the next epoch: such a batch is not empty.
            whole = addresses
            if is_empty:
                whole, _ = table.find_addresses(self._order(np.arange(first_row, next_row)).indices)
            width = find_width(whole, self._collate)
        batch = Batch(collate(addresses, self._collate, width, self._pad_id, new))
        if self._images is not None:
            batch[IMAGES] = self._images.take(indices)
        del held
        batch.first_row = first_row
        batch.next_row = next_row
        batch.sources = self._row_sources(addresses[:, A_SHARD], indices)
        batch.tokens = addresses[:, A_FILLED].copy()
        batch.num_positions = batch[INPUT_IDS].size
        return batch
