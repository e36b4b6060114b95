"""`Stream`: the rows of datasets in the order of training, as NumPy batches.

Row p is the same sample for every world size, batch size and number of loader workers, no matter what was read before.
So any number of processes can compute their own rows without communication, and the only state is the number of the
next row.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gristmill.core.checks import MAX_COUNT, check_whole_number
from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.core.records import LOSS_WEIGHTS
from gristmill.shards.token_rows import CHATS, has_image_references, has_kinds, has_weights
from gristmill.stream.accounting import Accounting
from gristmill.stream.collate import Collate
from gristmill.stream.lanes.arguments import MAX_BATCH, BatchTokens, StreamArguments, takes_fields
from gristmill.stream.lanes.balance import RankRows, RowCosts, TokenBatches, TokenPasses
from gristmill.stream.lanes.mixing import check_max_epochs, find_end_row, find_epoch_rows, find_left_out, make_mixture
from gristmill.stream.lanes.position import Position
from gristmill.stream.lanes.row_order import Passes, RowOrder
from gristmill.stream.lanes.sources import (
    arrange_lanes,
    find_row_length,
    hash_content,
    list_sources,
    open_block_cache,
    open_datasets,
)
from gristmill.stream.resumable import ResumableStream
from gristmill.stream.rows.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gristmill.shards.manifest import Manifest
    from gristmill.stream.accounting import WorkerCounts
    from gristmill.stream.collate import Batch
    from gristmill.stream.lanes.sources import Lane, StreamDataset
    from gristmill.stream.rows.row_details import RowOrigins
    from gristmill.stream.rows.sample_rows import SampleRows


class Stream(ResumableStream):
    """The rows of one dataset or of a mixture of several, shuffled, from any row on.

    Its arguments are the fields of `StreamArguments`, where each is described.
    """

    @takes_fields(StreamArguments)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = StreamArguments(*args, **kwargs)
        self._open()
        self.reader.table.check_sizes()

    def _open(self) -> None:
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
        self.collate = arguments.collate or Collate()
        _check_token_kinds(self.datasets, self.collate)
        self.passes = Passes(find_epoch_rows(arguments, self.lanes, self.order), self.num_rows, arguments.drop_last)
        self.token_batches = self._find_token_batches()
        check_max_epochs(arguments.max_epochs, self.lanes, self.order, self.num_rows)
        self.left_out = find_left_out(self.datasets, arguments)
        """Sources that the dataset's mixture leaves out, and why."""
        self.sources = list_sources(self.lanes)
        self.reader = open_reader(arguments, self.datasets[0].manifest, self.lanes, self.order, self.num_rows)
        """Makes batches of rows by their numbers."""
        self.holds_samples = not arguments.samples.makes_tokens and has_samples(self.datasets[0])
        """Whether batches hold samples, not tokens."""
        costs = RowCosts(self.datasets) if arguments.balance else None
        self.rank_rows = RankRows(self.order, costs, self.token_batches)
        """Which rows of a global batch each rank reads."""
        self.accounting = Accounting(self.lanes, self.order, self.sources, self.left_out)
        self.first_row = 0
        self.position = Position()

    def _find_token_batches(self) -> TokenBatches | None:
        """Prepare the batches by tokens, if there are any; then passes count these."""
        arguments, passes = self.arguments, self.passes
        if arguments.batch_tokens is None:
            return None
        if self.row_length is not None or has_samples(self.datasets[0]):
            raise UsageError(
                "batch_tokens is for rows of tokens that differ in length, and these are "
                + ("samples" if self.row_length is None else f"packed: each has {self.row_length:,} tokens"),
                help="leave it out, and pass a batch_size to the loader",
            )
        batches = TokenBatches(
            self.order,
            RowCosts(self.datasets),
            passes,
            cast("BatchTokens", arguments.batch_tokens),
            self.collate.pad_to_multiple,
            arguments.seed,
        )
        self.passes = TokenPasses(passes.epoch_rows, passes.num_rows, passes.drop_last, batches)
        return batches

    def __repr__(self) -> str:
        end = "endless" if self.num_rows is None else f"{self.num_rows:,} rows"
        without = "".join(f"; without {name}: {why}" for name, why in self.left_out.items())
        return f"Stream({', '.join(self.sources)}; {end}, next row {self.next_row:,}{without})"

    def rows(self, start: int, stop: int) -> Batch:
        """Make a batch of the rows from `start` up to `stop`. Rows past the end are empty."""
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
        """Make a batch of any rows in any order; see `StreamReader.take`."""
        return self.reader.take(rows, first_row=first_row, next_row=next_row, end=end, new=new)

    def batch(self, step: int, batch_size: int | None = None, rank: int = 0, world_size: int = 1) -> Batch:
        """Make the batch of one rank at one step. Steps are counted from where the stream began or was resumed."""
        batch_size, rank, world_size = self.check_ranks(batch_size, rank, world_size)
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
            begin = self.passes.skip_steps(row, later * num_readers, global_size)
            return self.rank_rows(begin, batch_size, rank, world_size, None if later else end)

        rows, next_row = find_rows(0), self.passes.batch_end(row, global_size)
        if self.reader.is_remote:
            self.reader.fetch_ahead(find_rows, max(next_row - row, global_size) * num_readers)
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

    def batches(self, batch_size: int | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Iterate over batches from the stream's position to its end. Each batch moves the position.

        A second call continues from there. If two iterations run at a time, the slower one raises `UsageError`.
        """
        batch_size, rank, world_size = self.check_ranks(batch_size, rank, world_size)
        return map(self.advance, self._make_batches(batch_size, rank, world_size))

    def _make_batches(self, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
        row = self.begin_pass(batch_size * world_size)
        while self.has_batch(row, batch_size * world_size):
            batch = self.batch_at(row, batch_size, rank, world_size)
            row = batch.next_row
            yield batch

    def where(
        self, step: int, batch_size: int | None = None, world_size: int = 1, rank: int | None = None
    ) -> list[RowOrigins]:
        """Find the documents that a step reads, row by row, for one rank or for all."""
        from gristmill.stream.rows.row_details import find_origins  # noqa: PLC0415  (loads the tokenizers' layer)

        batch_size, first_rank, world_size = self.check_ranks(batch_size, 0 if rank is None else rank, world_size)
        ranks = range(first_rank, world_size if rank is None else first_rank + 1)
        check_whole_number("the number of rows in one call", len(ranks) * batch_size, most=MAX_BATCH)
        row = self._find_first_row(step, batch_size * world_size)
        end = self.passes.end_of(row)
        rank_rows = [self.rank_rows(row, batch_size, number, world_size, end) for number in ranks]
        rows, rank_numbers = np.concatenate(rank_rows), np.repeat(ranks, [len(rows) for rows in rank_rows])
        is_real = slice(None) if end is None else rows < end
        return find_origins(self.order, self.reader.table, rows[is_real], rank_numbers[is_real])

    def samples(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the samples of some rows, one dict each, decoded and transformed."""
        if not self.holds_samples:
            raise UsageError("the rows of this stream are tokens, not samples", help="use rows() or take()")
        return cast("SampleRows", self.reader).take_samples(np.asarray(rows, np.int64))

    def count_in_worker(self, batch: Batch, worker: int, next_row: int | None) -> None:
        """Count a batch that a loader worker has made. Too many replaced samples of all workers are an error."""
        workers = self.accounting.workers
        if workers is None:
            return
        workers.add(batch, worker, next_row)
        if batch.num_replaced or batch.num_skipped:  # each of many workers may have few, and new ones in each epoch
            from gristmill.stream.rows.sample_rows import Losses, check_losses  # noqa: PLC0415  (few streams are of samples)

            totals = workers.totals()
            num_read = int(totals.rows[:-1].sum()) + totals.replaced + totals.skipped
            losses = Losses(num_read, totals.replaced, totals.skipped)
            check_losses(losses, self.arguments, "the workers of this rank have")

    def __reduce__(self) -> tuple[Any, ...]:
        counts = self.accounting.workers
        return _reopen, (self.arguments, self.dataset_hash, self.first_row, self.position, counts)


def _reopen(
    arguments: StreamArguments,
    dataset_hash: str,
    first_row: int,
    position: Position,
    counts: WorkerCounts | None,
) -> Stream:
    """Open a stream again in another process, and check that its data has not changed."""
    stream = Stream.__new__(Stream)
    stream.arguments = arguments
    stream._open()
    if stream.dataset_hash != dataset_hash:
        raise UsageError("the dataset was changed while it was streamed", help="start again, or resume from a state")
    stream.first_row, stream.position = first_row, position
    stream.accounting.restart(position.row)
    stream.accounting.workers = counts
    return stream


def _check_token_kinds(datasets: list[StreamDataset], collate: Collate) -> None:
    """Refuse to choose among the kinds of tokens where chats do not say them."""
    is_weighted = any(has_weights(dataset.manifest.schema.to_arrow()) for dataset in datasets)
    if is_weighted and "labels" in collate.fields and LOSS_WEIGHTS not in collate.fields:
        warnings.warn(
            f'tokens of this stream have weights, and its batches do not hold them: add "{LOSS_WEIGHTS}" to the fields '
            "of Collate, and multiply the loss by them",
            stacklevel=4,
        )
    if not collate.chooses_kinds:
        return
    for dataset in datasets:
        if dataset.manifest.kind == CHATS and not has_kinds(dataset.manifest.schema.to_arrow()):
            raise UsageError(
                f"train and weights of Collate choose kinds of tokens, and "
                f"{dataset.name or 'this dataset'} does not say of which kind its tokens are, only which are trained",
                help="make it with the step render, or leave train and weights out",
            )


def has_samples(dataset: StreamDataset) -> bool:
    """Whether the rows of a dataset are stored as samples, not as tokens."""
    return not dataset.manifest.holds_rows


def open_reader(
    arguments: StreamArguments, manifest: Manifest, lanes: list[Lane], order: RowOrder, num_rows: int | None
) -> RowReader | SampleRows:
    """Open the reader of these lanes. `manifest` is that of their first dataset."""
    has_images = has_image_references(manifest.schema.to_arrow())
    _check_kind(arguments, holds_samples=not manifest.holds_rows, has_images=has_images)
    is_cached = any(shard.is_cached for lane in lanes for shard in lane.shards)
    cache = open_block_cache(arguments) if is_cached else None
    if not manifest.holds_rows:
        from gristmill.stream.rows.sample_rows import SampleRows  # noqa: PLC0415  (few streams are of samples)

        return SampleRows(lanes, order, arguments, num_rows, cache)
    return RowReader(lanes, order, arguments, num_rows, cache, manifest)


def _check_kind(arguments: StreamArguments, *, holds_samples: bool, has_images: bool) -> None:
    """Refuse arguments that the rows of this stream do not have."""
    samples = arguments.samples
    if samples.images is not None and not has_images:
        raise UsageError("images is for rows of chats with images, and these have none", help="leave it out")
    if holds_samples:
        if arguments.tokens is not None or arguments.weights_in == "tokens":
            raise UsageError("samples have no known number of tokens", help="use rows= and weights in rows")
        if arguments.balance:
            raise UsageError("samples have no known attention cost: balance is for rows of tokens", help="leave it out")
        if arguments.collate is not None and not samples.makes_tokens:
            raise UsageError(
                "samples have no tokens: collate is for rows of tokens",
                help="pass samples=Samples(tokenize=…) or Samples(ids=…); on the command line, make rows of tokens "
                "first: `gristmill run` a recipe with read and tokenize, and name its output",
            )
    elif has_images and samples.decode is not None and samples.images is None:
        raise UsageError(
            "decode: the rows only refer to images", help="name the images of the recipe: Samples(images=…)"
        )
    elif (
        (samples.decode is not None and not has_images)
        or samples.transform is not None
        or samples.tokenize is not None
        or samples.on_error != "raise"
    ):
        raise UsageError("decode, transform, tokenize and on_error are for samples, and these are rows of tokens")
