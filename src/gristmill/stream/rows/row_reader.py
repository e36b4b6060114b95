"""Batches of any rows: the order says which stored row each is, the table where that is in memory, a kernel copies it.

`StreamReader` is what readers of tokens and of samples share: each process opens its files, and rows of later batches
are requested from the disk or the store while a batch is made. `RowReader` reads tokens.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.records import IMAGES, LOSS_WEIGHTS
from gristmill.core.token_kinds import TOKEN_KINDS
from gristmill.shards.token_rows import find_token_columns, has_image_references, is_masked
from gristmill.stream.collate import INPUT_IDS, Batch, Collate, choose_pad_id, collate, find_width
from gristmill.stream.lanes.sources import find_row_length, list_sources
from gristmill.stream.mapped_memory import ReadAhead, memory
from gristmill.stream.rows.block_reader import RemoteTable
from gristmill.stream.rows.row_details import RowColumn, RowImages, RowSources
from gristmill.stream.rows.row_table import RowTable
from gristmill.stream.stream_kernels import A_FILLED, A_SHARD, count_kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.shards.manifest import Manifest
    from gristmill.storage.user_cache import BlockCache
    from gristmill.stream.lanes.arguments import StreamArguments
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane
    from gristmill.stream.rows.row_table import StoredTable


_FIRST_BATCHES = 16
"""The batches whose blocks are requested before the first one is read."""
_PARTS_OF_WINDOW = 16
"""How often in a window the blocks of the next one are requested."""
_ROWS_OF_LATER_WINDOW = 128
"""The rows of the window after that whose blocks are requested then: after a few times these are all of them."""


class StreamReader(ABC):
    """Makes batches of any rows of a stream. Threads may use it together.

    Args:
        lanes: The rows to read.
        order: Which stored row each row of the stream is.
        arguments: What batches hold.
        num_rows: The end of the stream, after which rows are empty; None: it is endless.
        cache: Where blocks of shards that are not on this disk are kept; None: all are.
    """

    table: StoredTable

    def __init__(
        self,
        lanes: list[Lane],
        order: RowOrder,
        arguments: StreamArguments,
        num_rows: int | None,
        cache: BlockCache | None,
    ) -> None:
        self._shards = [shard for lane in lanes for shard in lane.shards]
        self._sources = list_sources(lanes)
        """The names of all sources; batches refer to them by number."""
        self._order = order
        self._arguments = arguments
        self._collate = arguments.collate or Collate()
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

        Where blocks are shuffled, these are the blocks of the next two windows. If those of only one were requested,
        fewer and fewer would be fetched at a time, until it begins.
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
        """Count the batches of that many rows after this one whose blocks `fetch_ahead` may have requested."""
        window, farthest = self._find_reach(num_rows, step)
        return 2 * farthest + math.ceil(_ROWS_OF_LATER_WINDOW / num_rows) if window else farthest

    def _find_reach(self, num_rows: int, step: int) -> tuple[int, int]:
        """Find the batches of a window (0: all rows are shuffled), and how many are always requested ahead."""
        window = math.ceil(self._order.window_rows / step)
        return window, max(self.read_ahead.batches_ahead(num_rows), window)

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        """Start reading rows of a later batch."""
        if self._num_rows is not None:
            rows = rows[rows < self._num_rows]
        self.table.request_rows(self._order(rows).indices)


class RowReader(StreamReader):
    """Makes batches of rows of tokens. `manifest` is that of the first dataset, and the rest as in `StreamReader`."""

    table: RowTable | RemoteTable

    def __init__(
        self,
        lanes: list[Lane],
        order: RowOrder,
        arguments: StreamArguments,
        num_rows: int | None,
        cache: BlockCache | None,
        manifest: Manifest,
    ) -> None:
        super().__init__(lanes, order, arguments, num_rows, cache)
        tokenizer = manifest.tokenizer
        pad_ids = (None, None) if tokenizer is None else (tokenizer.pad_id, tokenizer.eos_id)
        self._pad_id = choose_pad_id(self._collate, *pad_ids)
        self._row_length = find_row_length(manifest)
        self._has_chats = any(is_masked(shard.schema) for shard in self._shards)
        schema = manifest.schema.to_arrow()
        self._has_images = has_image_references(schema)
        stored = find_token_columns(schema)
        for name in self._collate.token_columns:
            check_choice("token_columns", name, list(stored))
        if LOSS_WEIGHTS in stored and LOSS_WEIGHTS in self._collate.fields:
            raise UsageError(
                f"these rows store {LOSS_WEIGHTS} for each token",
                help=f'name them in token_columns=("{LOSS_WEIGHTS}",)',
            )
        self._number_types = {
            name: str(np.dtype(stored[name].to_pandas_dtype())) for name in self._collate.token_columns
        }
        self.close_files()

    def _open_table(self) -> None:
        if self._cache is None:
            self.table = RowTable(self._shards, at_random=bool(self._arguments.shuffle))
        else:
            self.table = RemoteTable(self._shards, self._cache)
        images, decode = self._arguments.samples.image_files, self._arguments.samples.decode
        self._images = RowImages(self._shards, self.table, images, decode) if self._has_images else None
        self._token_columns = [RowColumn(name, self._shards, self.table) for name in self._collate.token_columns]
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
        addresses, mappings = table.find_addresses(indices)  # kept until the rows are copied
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
        for column in self._token_columns:
            numbers = new((len(indices), width), self._number_types[column.name])
            column.fill(indices, addresses[:, A_FILLED], numbers)
            batch[column.name] = numbers.reshape(1, -1) if self._collate.flatten else numbers
        if self._images is not None:
            batch[IMAGES] = self._images.take(indices)
        del mappings
        batch.first_row = first_row
        batch.next_row = next_row
        batch.sources = self._row_sources(addresses[:, A_SHARD], indices)
        batch.tokens = addresses[:, A_FILLED].copy()
        batch.num_positions = batch[INPUT_IDS].size
        if self._has_chats:
            batch.kinds = np.zeros(len(TOKEN_KINDS), np.int64)
            count_kinds(addresses, memory().uint16, batch.kinds)
        return batch
