"""`Stream`: the rows of datasets in the order of training, as NumPy batches.

Row p is the same sample for every world size, batch size and number of loader workers, no matter what was read before.
So any number of processes can compute their own rows without communication, and the only state is the number of the
next row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from gristmill.core.checks import MAX_COUNT, check_whole_number
from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.shards.token_rows import has_image_references
from gristmill.stream.accounting import Accounting
from gristmill.stream.collate import Collate
from gristmill.stream.lanes.arguments import DEFAULT_CACHE_BYTES, MAX_BATCH, StreamArguments
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
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.shards.manifest import Manifest
    from gristmill.stream.accounting import WorkerCounts
    from gristmill.stream.collate import Batch
    from gristmill.stream.lanes.mixing import MixtureLike
    from gristmill.stream.lanes.sources import Lane, StreamData, StreamDataset
    from gristmill.stream.rows.row_details import RowOrigins
    from gristmill.stream.rows.sample_rows import SampleRows


class Stream(ResumableStream):
    """The rows of one dataset or of a mixture of several, shuffled, from any row on.

    Args:
        data: The folder of a dataset, or several by name: `{"web": "out/web", "code": ("out/code", 0.3)}`, with a
            weight for all of them or for none.
        mixture: The weights of the sources (of the datasets, if there are several), or phases `[(0, weights), (row,
            …)]`, or `{"epochs": {"web": 1, "code": 2}}`. None: the manifest's mixture, without sources that have no
            rows in this split (`left_out`); if it has none, all rows are shuffled together and each is read once an
            epoch.
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
        batch_tokens: For rows that are not packed: put rows of similar lengths into batches of at most that many
            tokens, with padding. Loaders then get no `batch_size`. `{"tokens": n, "window": rows}` also sets among how
            many rows of the order similar ones are found (4,096).
        balance: Deal the rows of a global batch to ranks by their attention cost, instead of one slice each.
        collate: What a batch of tokens holds.
        decode: For samples, what becomes of images: "numpy" (the default; height, width and 3 channels of 8 bits),
            "pil", "bytes" (as they are stored), or a function of the bytes.
        transform: For samples, a function of each sample, a dict of its columns; it runs where batches are made. If it
            returns None, the sample is skipped: another one replaces it, as with `on_error="replace"`.
        tokenize: For samples with texts, a tokenizer, or a dict with `tokenizer`, `text` (the column), `max_tokens`,
            `add_eos` and `add_bos`: texts are encoded where batches are made, and batches are those of `collate`.
        ids: The column of token ids, in samples or third-party tables; `input_ids` of tables needs no mention.
        images: For chats with images, the folder or the tars that the recipe names: `batch["images"]` then has for each
            row its images in order, as bytes or as `decode` says. None: it has references.
        on_error: What to do with a sample that cannot be decoded or transformed: "raise", or "replace" it by another
            one, chosen by a hash of seed, row and attempt. `accounting` counts them.
        max_replaced: The share of samples above which `on_error="replace"` raises, in one process or all workers.
        max_skipped: The same for samples that `transform` skips.
        cache: The folder on a local disk for the blocks of datasets on a store. Default: in the user's cache folder.
        cache_bytes: The size of that folder, above which the blocks used longest ago are removed.

    `data` may also name files that were not written here: tars of samples (`"shards/a-{000..099}.tar"`), JSON Lines
    (`"data/*.jsonl"`), Parquet files (`"s3://bucket/*.parquet"`), a folder of `datasets`, or a local folder of images.
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
        batch_tokens: int | Mapping[str, int] | None = None,
        collate: Collate | None = None,
        decode: str | Callable[[bytes], Any] | None = None,
        transform: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
        tokenize: str | Mapping[str, Any] | None = None,
        ids: str | None = None,
        on_error: str = "raise",
        max_replaced: float = 0.01,
        max_skipped: float = 0.5,
        images: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        arguments = dict(locals())  # the struct has a field for each of them
        del arguments["self"]
        self.arguments = StreamArguments(**arguments)
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
        self.passes = Passes(find_epoch_rows(arguments, self.lanes, self.order), self.num_rows, arguments.drop_last)
        self.token_batches = self._find_token_batches()
        check_max_epochs(arguments.max_epochs, self.lanes, self.order, self.num_rows)
        self.left_out = find_left_out(self.datasets, arguments)
        """Sources that the dataset's mixture leaves out, and why."""
        self.sources = list_sources(self.lanes)
        self.reader = open_reader(arguments, self.datasets[0].manifest, self.lanes, self.order, self.num_rows)
        """Makes batches of rows by their numbers."""
        self.holds_samples = arguments.tokenize is None and arguments.ids is None and has_samples(self.datasets[0])
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
            arguments.batch_tokens,
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
    if arguments.images is not None and not has_images:
        raise UsageError("images is for rows of chats with images, and these have none", help="leave it out")
    makes_tokens = arguments.tokenize is not None or arguments.ids is not None
    if holds_samples:
        if arguments.decode is None:
            msgspec.structs.force_setattr(arguments, "decode", "numpy")
        if arguments.tokens is not None or arguments.weights_in == "tokens":
            raise UsageError("samples have no known number of tokens", help="use rows= and weights in rows")
        if arguments.balance:
            raise UsageError("samples have no known attention cost: balance is for rows of tokens", help="leave it out")
        if arguments.collate is not None and not makes_tokens:
            raise UsageError(
                "samples have no tokens: collate is for rows of tokens",
                help="pass tokenize= or ids= to Stream; on the command line, which has neither, make rows of tokens "
                "first: `gristmill run` a recipe with read and tokenize, and name its output",
            )
    elif has_images and arguments.decode is not None and arguments.images is None:
        raise UsageError("decode: the rows only refer to images", help="name the images of the recipe: images=…")
    elif (
        (arguments.decode is not None and not has_images)
        or arguments.transform is not None
        or arguments.tokenize is not None
        or arguments.on_error != "raise"
    ):
        raise UsageError("decode, transform, tokenize and on_error are for samples, and these are rows of tokens")
