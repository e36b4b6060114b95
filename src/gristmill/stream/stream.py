"""`Stream`: the rows of datasets in the order of training, as NumPy batches.

Row p is the same sample for every world size, batch size and number of loader workers, and whatever was read before it.
So any number of processes can compute their own rows without communication, and the only state is the number of the
next row.
"""

from __future__ import annotations

import os
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

import numpy as np

from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.core.numbers import MAX_COUNT, check_whole_number
from gristmill.stream.accounting import Accounting
from gristmill.stream.batches.collate import Collate
from gristmill.stream.lanes.arguments import DEFAULT_CACHE_BYTES, MAX_BATCH, StreamArguments, check_ranks
from gristmill.stream.lanes.balance import RankRows, RowCosts
from gristmill.stream.lanes.mixing import check_max_epochs, find_end_row, find_epoch_rows, find_left_out, make_mixture
from gristmill.stream.lanes.passes import Passes
from gristmill.stream.lanes.position import Position
from gristmill.stream.lanes.row_order import RowOrder
from gristmill.stream.lanes.sources import (
    arrange_lanes,
    find_row_length,
    hash_content,
    list_sources,
    open_datasets,
)
from gristmill.stream.open_reader import has_samples, open_reader
from gristmill.stream.resumable import ResumableStream
from gristmill.stream.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.stream.batches.collate import Batch
    from gristmill.stream.lanes.mixing import MixtureLike
    from gristmill.stream.lanes.sources import StreamData
    from gristmill.stream.samples.sample_rows import SampleRows
    from gristmill.stream.where import RowOrigins
    from gristmill.stream.worker_counts import WorkerCounts


class Stream(ResumableStream):
    """The rows of one dataset or of a mixture of several, shuffled, from any row on.

    Args:
        data: The folder of a dataset, or several by name: `{"web": "out/web", "code": ("out/code", 0.3)}`, with a
            weight for all of them or for none.
        mixture: The weights of the sources (of the datasets, if there are several), or phases
            `[(0, weights), (row, …)]`. None: the manifest's mixture, without sources that have no rows in this split
            (`left_out`); if it has none, all rows are shuffled together and each is read once an epoch.
        weights_in: Whether weights are shares of "rows" or of "tokens".
        split: The split to read. Default: "train" if there is one.
        sources: Read only these sources.
        seed: The seed of the order.
        shuffle: False: each source in the order of its records. `{"blocks": n}`: blocks of consecutive rows in random
            order, and the rows of n of them shuffled together, so that a remote block is fetched once an epoch.
        epochs: End after this many times the number of rows. Without weights, each pass of a loader is an epoch.
        rows: End after this many rows.
        tokens: End after the rows that hold this many tokens, by the mean of each source. Without `epochs`, `rows` and
            `tokens` the stream is endless.
        rows_per_epoch: The rows of an epoch, which is one pass of a loader. With weights an epoch has no other
            definition: without this, the stream is one pass.
        max_epochs: Refuse an end that reads a source more often: a number, or one for each source.
        drop_last: Leave out the rows of an incomplete last batch. False: fill it up with empty rows.
        balance: Deal the rows of a global batch to ranks by their attention cost, instead of one slice each.
        collate: What a batch of tokens holds.
        decode: For samples, what becomes of images: "numpy" (the default; height, width and 3 channels of 8 bits),
            "pil", "bytes" (as they are stored), or a function of the bytes.
        transform: For samples, a function of each sample, a dict of its columns; it runs where batches are made.
        tokenize: For samples with texts, a tokenizer, or a dict with `tokenizer`, `text` (the column), `max_tokens`,
            `add_eos` and `add_bos`: texts are encoded where batches are made, and batches are those of `collate`.
        ids: The column of token ids, of samples or of tables of others; `input_ids` of tables needs no mention.
        images: For chats with images, the folder or the tars that the recipe names: `batch["images"]` then has for each
            row its images in order, as bytes or as `decode` says. None: it has references.
        on_error: What to do with a sample that cannot be decoded or transformed: "raise", or "replace" it by another
            one, chosen by a hash of seed, row and attempt.
        cache: The folder on a local disk for the blocks of datasets on a store. Default: in the user's cache folder.
        cache_bytes: The size of that folder, above which the blocks used longest ago are removed.

    `data` may also name files that were not written here: tars of samples (`"shards/a-{000..099}.tar"`), Parquet files
    (`"s3://bucket/*.parquet"`), or a folder of `datasets`.
    """

    def __init__(
        self,
        data: StreamData,
        *,
        mixture: MixtureLike | None = None,
        weights_in: str = "rows",
        split: str | None = None,
        sources: Sequence[str] | None = None,
        seed: int = 0,
        shuffle: bool | Mapping[str, int] = True,
        epochs: float | None = None,
        rows: int | None = None,
        tokens: int | None = None,
        rows_per_epoch: int | None = None,
        max_epochs: float | Mapping[str, float] | None = None,
        drop_last: bool = False,
        balance: bool = False,
        collate: Collate | None = None,
        decode: str | Callable[[bytes], Any] | None = None,
        transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        tokenize: str | Mapping[str, Any] | None = None,
        ids: str | None = None,
        on_error: str = "raise",
        images: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.arguments = StreamArguments(
            data=data,
            mixture=mixture,
            weights_in=weights_in,
            split=split,
            sources=sources,
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            rows=rows,
            tokens=tokens,
            rows_per_epoch=rows_per_epoch,
            max_epochs=max_epochs,
            drop_last=drop_last,
            balance=balance,
            collate=collate,
            decode=decode,
            transform=transform,
            tokenize=tokenize,
            ids=ids,
            on_error=on_error,
            images=images,
            cache=cache,
            cache_bytes=cache_bytes,
        )
        self._open(_make_key())
        self.reader.table.check_sizes()

    def _open(self, key: str) -> None:
        self.key = key
        """Names this stream and its copies in loader workers, which all read the same rows."""
        open_streams[key] = self
        arguments = self.arguments
        self.datasets = open_datasets(arguments)
        self.row_length = find_row_length(self.datasets[0].manifest)
        """Tokens in each row; None: rows differ in length."""
        self.dataset_hash = hash_content(self.datasets)
        mixture = make_mixture(self.datasets, arguments, self.row_length)
        self.lanes = arrange_lanes(self.datasets, weighted=mixture is not None)
        self.order = RowOrder(
            self.lanes, mixture, arguments.seed, shuffle=bool(arguments.shuffle), window=arguments.window
        )
        self.num_rows = find_end_row(arguments, self.lanes, self.order, self.row_length)
        self.passes = Passes(find_epoch_rows(arguments, self.lanes, self.order), self.num_rows, arguments.drop_last)
        check_max_epochs(arguments.max_epochs, self.lanes, self.order, self.num_rows)
        self.left_out = find_left_out(self.datasets, arguments)
        """Sources that the dataset's mixture leaves out, and why."""
        self.collate = arguments.collate or Collate()
        self.sources = list_sources(self.lanes)
        self.reader = open_reader(arguments, self.datasets[0].manifest, self.lanes, self.order, self.num_rows)
        """Makes batches of rows by their numbers."""
        self.holds_samples = arguments.tokenize is None and arguments.ids is None and has_samples(self.datasets[0])
        """Whether batches hold samples, not tokens."""
        self.rank_rows = RankRows(self.order, RowCosts(self.datasets) if arguments.balance else None)
        """Which rows of a global batch each rank reads."""
        self.accounting = Accounting(self.lanes, self.order, self.sources, self.left_out)
        self.first_row = 0
        self.position = Position()

    def __repr__(self) -> str:
        end = "endless" if self.num_rows is None else f"{self.num_rows:,} rows"
        without = "".join(f"; without {name}: {why}" for name, why in self.left_out.items())
        return f"Stream({', '.join(self.sources)}; {end}, next row {self.next_row:,}{without})"

    def rows(self, start: int, stop: int) -> Batch:
        """Make a batch of the rows from `start` up to `stop`, whatever was read before. Rows past the end are empty."""
        start, stop = check_whole_number("start", start), check_whole_number("stop", stop)
        if start > stop:
            raise UsageError(f"start must not be after stop: {start} to {stop}")
        check_whole_number("the number of rows in one call", stop - start, most=MAX_BATCH)
        return self.take(np.arange(start, stop), first_row=start, next_row=stop)

    def take(
        self,
        rows: NDArray[np.int64],
        *,
        first_row: int,
        next_row: int,
        end: int | None = None,
        new: Callable[..., Any] = np.empty,
    ) -> Batch:
        """Make a batch of any rows in any order; see `RowReader.take`."""
        return self.reader.take(rows, first_row=first_row, next_row=next_row, end=end, new=new)

    def batch(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Make the batch of one rank at one step. Steps are counted from where the stream began or was resumed."""
        batch_size, rank, world_size = check_ranks(batch_size, rank, world_size)
        return self.batch_at(self._find_first_row(step, batch_size * world_size), batch_size, rank, world_size)

    def _find_first_row(self, step: int, global_size: int) -> int:
        """Find the row at which a step begins."""
        step = check_whole_number("step", step, least=-MAX_COUNT)
        row = self.passes.row_of_step(self.first_row, max(step, 0), global_size)
        if step < 0 or not self.has_batch(row, global_size):
            total = "" if self.num_rows is None else f" of {self.steps_from(self.first_row, global_size):,}"
            raise OutOfRangeError(f"there is no step {step:,}{total}: steps are counted from 0")
        check_whole_number("the last row of a step", row + global_size)
        return row

    def batch_at(
        self,
        row: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        new: Callable[..., Any] = np.empty,
        num_readers: int = 1,
    ) -> Batch:
        """Make a rank's slice of the global batch that begins at `row`; `new` makes its arrays.

        `num_readers` is the number of loader workers that take turns at the batches of this rank.
        """
        global_size, end = batch_size * world_size, self.passes.end_of(row)

        def find_rows(later: int) -> NDArray[np.int64]:
            """Find the rows of this rank in the batch that this reader makes after `later` others."""
            begin = row + later * global_size * num_readers
            return self.rank_rows(begin, batch_size, rank, world_size, None if later else end)

        rows, next_row = find_rows(0), self.passes.batch_end(row, global_size)
        if self.reader.is_remote:
            self.reader.fetch_ahead(find_rows, global_size * num_readers)
        elif self.arguments.shuffle and isinstance(self.reader, RowReader):
            return self._read_ahead(rows, find_rows, row, next_row, new)
        return self.take(rows, first_row=row, next_row=next_row, end=end, new=new)

    def _read_ahead(
        self,
        rows: NDArray[np.int64],
        find_rows: Callable[[int], NDArray[np.int64]],
        row: int,
        next_row: int,
        new: Callable[..., Any],
    ) -> Batch:
        """Make a batch; if its rows come from the disk, request those of this reader's next batches, too."""
        read_ahead = self.reader.read_ahead
        farthest = read_ahead.batches_ahead(len(rows))
        if read_ahead.is_cold:
            self.reader.prefetch(find_rows(farthest))
        num_faults = read_ahead.num_faults()
        batch = self.take(rows, first_row=row, next_row=next_row, end=self.passes.end_of(row), new=new)
        if read_ahead.note(num_faults):
            for number in range(1, farthest + 1):
                self.reader.prefetch(find_rows(number))
        return batch

    def batches(self, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Iterate over batches from the stream's position to its end. Each batch moves the position.

        A second call continues from there. Of two iterations at a time, the one that falls behind raises `UsageError`.
        """
        batch_size, rank, world_size = check_ranks(batch_size, rank, world_size)
        return map(self.advance, self._make_batches(batch_size, rank, world_size))

    def _make_batches(self, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
        row = self.begin_pass(batch_size * world_size)
        while self.has_batch(row, batch_size * world_size):
            batch = self.batch_at(row, batch_size, rank, world_size)
            row = batch.next_row
            yield batch

    def where(self, step: int, batch_size: int, world_size: int = 1, rank: int | None = None) -> list[RowOrigins]:
        """Find the documents that a step reads, row by row, for one rank or for all."""
        from gristmill.stream.where import find_origins  # noqa: PLC0415  (loads the tokenizers' layer)

        batch_size, first_rank, world_size = check_ranks(batch_size, 0 if rank is None else rank, world_size)
        ranks = range(first_rank, world_size if rank is None else first_rank + 1)
        check_whole_number("the number of rows in one call", len(ranks) * batch_size, most=MAX_BATCH)
        row = self._find_first_row(step, batch_size * world_size)
        end = self.passes.end_of(row)
        rows = np.concatenate([self.rank_rows(row, batch_size, number, world_size, end) for number in ranks])
        is_real = slice(None) if end is None else rows < end
        return find_origins(self.order, self.reader.table, rows[is_real], np.repeat(ranks, batch_size)[is_real])

    def samples(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the samples of some rows, one dict each, decoded and transformed."""
        if not self.holds_samples:
            raise UsageError("the rows of this stream are tokens, not samples", help="use rows() or take()")
        return cast("SampleRows", self.reader).take_samples(np.asarray(rows, np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        counts = self.accounting.workers
        # A copy in this process is a stream of its own.
        key = self.key if get_spawning_popen() is not None else None
        return _reopen, (self.arguments, self.dataset_hash, self.first_row, self.position, counts, key)


open_streams: WeakValueDictionary[str, Stream] = WeakValueDictionary()
"""The streams of this process by their keys."""


def _make_key() -> str:
    return os.urandom(8).hex()


def _reopen(
    arguments: StreamArguments,
    dataset_hash: str,
    first_row: int,
    position: Position,
    counts: WorkerCounts | None,
    key: str | None,
) -> Stream:
    """Open a stream again in another process, and check that its data has not changed."""
    stream = Stream.__new__(Stream)
    stream.arguments = arguments
    stream._open(key or _make_key())
    if stream.dataset_hash != dataset_hash:
        raise UsageError("the dataset was changed while it was streamed", help="start again, or resume from a state")
    stream.first_row, stream.position = first_row, position
    stream.accounting.restart(position.row)
    stream.accounting.workers = counts
    return stream
