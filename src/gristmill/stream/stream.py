"""`Stream`: the rows of datasets in the order of training, as NumPy batches.

Row p is the same sample whatever the world size, the batch size and the number of loader workers are, and whatever was
read before it. So any number of processes may each compute their own rows without talking to each other, and the only
state is the number of the next row.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import EndlessStreamError, OutOfRangeError, UsageError
from gristmill.core.numbers import MAX_COUNT, check_whole_number
from gristmill.stream.accounting import Accounting
from gristmill.stream.arguments import MAX_BATCH, StreamArguments, check_ranks
from gristmill.stream.collate import INPUT_IDS, Batch, Collate, collate, width_of
from gristmill.stream.kernels import S_FILLED, S_SHARD
from gristmill.stream.mixing import check_max_epochs, epoch_rows, horizon, left_out_by, mixture_of
from gristmill.stream.passes import Passes
from gristmill.stream.position import Position
from gristmill.stream.read_ahead import ReadAhead
from gristmill.stream.row_order import RowOrder
from gristmill.stream.row_sources import RowSources
from gristmill.stream.row_table import RowTable
from gristmill.stream.sources import content_hash, lanes_of, open_parts, row_length_of
from gristmill.stream.state import check_same, parse_state, state_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.stream.mixing import MixtureLike
    from gristmill.stream.sources import StreamData
    from gristmill.stream.state import StreamState
    from gristmill.stream.where import RowOrigins
    from gristmill.stream.worker_counts import WorkerCounts


class Stream:
    """The rows of one dataset or a mixture of several, shuffled, from any row on.

    Args:
        data: The folder of a dataset, or a name for each of several: `{"web": "out/web", "code": ("out/code", 0.3)}`,
            with a weight for all of them or for none.
        mixture: Weights of the sources (of several datasets: by their names), or phases `[(0, weights), (row, …)]`.
            None: the manifest's, without sources that have no rows in this split (`left_out`); if it has none, all rows
            are shuffled together and each comes once an epoch.
        weights_in: Whether weights are shares of "rows" or of "tokens".
        split: Which one; "train" if there is one.
        sources: Only these.
        seed: Another one, another order.
        shuffle: False: each source in the order of its records.
        epochs: End after as many rows as there are, this many times. Without weights each pass of a loader is an epoch.
        rows: End after so many.
        tokens: End after the rows that hold so many tokens, by the mean of each source.
            Without any of these three the stream is endless.
        rows_per_epoch: What an epoch is: a pass of a loader has so many rows. With weights there is no other way to say
            it, and without it the stream is one pass.
        max_epochs: Refuse an end that reads a source more often (a number, or one a source).
        drop_last: Leave out the rows of an incomplete last batch; else it is filled up with empty rows.
        collate: What a batch holds.
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
        shuffle: bool = True,
        epochs: float | None = None,
        rows: int | None = None,
        tokens: int | None = None,
        rows_per_epoch: int | None = None,
        max_epochs: float | Mapping[str, float] | None = None,
        drop_last: bool = False,
        collate: Collate | None = None,
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
            collate=collate,
        )
        self._open()
        self.table.check_sizes()

    def _open(self) -> None:
        given = self.arguments
        self.parts = open_parts(given.data, given.split, given.sources, weighted=given.mixture is not None)
        self.row_length = row_length_of(self.parts[0].manifest)
        """Tokens in each row; None where rows have lengths of their own."""
        self.dataset_hash = content_hash(self.parts)
        chosen = mixture_of(self.parts, given, self.row_length)
        self.lanes = lanes_of(self.parts, weighted=chosen is not None)
        self.order = RowOrder(self.lanes, chosen, given.seed, shuffle=given.shuffle)
        self.num_rows = horizon(given, self.lanes, self.order, self.row_length)
        """After which the stream ends; None: never."""
        self.passes = Passes(epoch_rows(given, self.lanes, self.order), self.num_rows, given.drop_last)
        """Where passes begin and end."""
        check_max_epochs(given.max_epochs, self.lanes, self.order, self.num_rows)
        self.forget_files()
        self.left_out = left_out_by(self.parts, given)
        """Sources that the dataset's mixture leaves out, and why."""
        self.accounting = Accounting(self.lanes, self.order, self.sources, self.left_out)
        """What was handed out so far, against plan."""
        self.collate = given.collate or Collate()
        self.pad_id = _pad_id(self.collate, self.parts[0].manifest.tokenizer)
        self.first_row = 0
        """Where step 0 begins: 0, or the row of the state that was loaded. Reading does not move it."""
        self.position = Position()
        """Where `batches` and `TorchLoader` go on."""

    @property
    def next_row(self) -> int:
        """Where the stream stands: behind the last batch that was handed out."""
        return self.position.row

    def forget_files(self) -> None:
        """Let go of all open shards; they are opened again when rows of them are asked for."""
        self._process = os.getpid()
        shards = [shard for lane in self.lanes for shard in lane.shards]
        self.table = RowTable(shards, at_random=self.arguments.shuffle)
        self._read_ahead = ReadAhead()
        self.sources = list(dict.fromkeys(source for shard in shards for source in shard.shares))
        self._row_sources = RowSources(shards, self.sources)

    def __len__(self) -> int:
        """How many rows there are in all."""
        if self.num_rows is None:
            raise EndlessStreamError(
                "this stream is endless: it has no length", help="give it an end: epochs=, rows= or tokens="
            )
        return self.num_rows

    def __repr__(self) -> str:
        end = "endless" if self.num_rows is None else f"{self.num_rows:,} rows"
        without = "".join(f"; without {name}: {why}" for name, why in self.left_out.items())
        return f"Stream({', '.join(self.sources)}; {end}, next row {self.next_row:,}{without})"

    def rows(self, start: int, stop: int) -> Batch:
        """The rows from `start` up to `stop`, whatever was read before; those past the end are empty."""
        start, stop = check_whole_number("start", start), check_whole_number("stop", stop)
        if start > stop:
            raise UsageError(f"the first row is not after the last: {start} to {stop}")
        check_whole_number("the number of rows at once", stop - start, most=MAX_BATCH)
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
        """Any rows in any order as one batch of the step that ends before `next_row`; those from `end` on are empty."""
        if self._process != os.getpid():  # a forked process must not share the lock of its parent
            self.forget_files()
        table = self.table  # held until the rows are copied, even if another thread forgets the files
        places = self.order(rows).places
        end = self.num_rows if end is None else end
        if end is not None:
            places[rows >= end] = -1
            next_row = min(next_row, end)
        spots = table.spots(places)
        width = self.row_length
        if width is None:
            # A rank that has no row left is as wide as all together: there is no tensor without places.
            empty = next_row > first_row and not (places >= 0).any()
            # Where the rest of an epoch is left out, `next_row` is farther than the batch: that one is not empty.
            whole = table.spots(self.order(np.arange(first_row, next_row)).places) if empty else spots
            width = width_of(whole, self.collate)
        batch = Batch(collate(spots, self.collate, width, self.pad_id, new))
        batch.first_row = first_row
        batch.next_row = next_row
        batch.sources = self._row_sources(spots[:, S_SHARD], places)
        batch.tokens = spots[:, S_FILLED].copy()
        batch.num_places = batch[INPUT_IDS].size
        return batch

    def batch(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> Batch:
        """The batch of one rank at one step, counted from where the stream began or was resumed."""
        batch_size, rank, world_size = check_ranks(batch_size, rank, world_size)
        return self.batch_at(self._row_of(step, batch_size * world_size), batch_size, rank, world_size)

    def _row_of(self, step: int, global_size: int) -> int:
        """At which a step begins."""
        step = check_whole_number("step", step, least=-MAX_COUNT)
        row = self.passes.row_of_step(self.first_row, max(step, 0), global_size)
        if step < 0 or not self.has_batch(row, global_size):
            known = "" if self.num_rows is None else f" of {self.steps_from(self.first_row, global_size):,}"
            raise OutOfRangeError(f"there is no step {step:,}{known}: they are counted from 0")
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
        """A rank's part of the global batch that begins at `row`; `new` makes its arrays.

        `num_readers`: how many make the batches of this rank in turn, so that this one makes every such next.
        """
        start = row + rank * batch_size
        rows = np.arange(start, start + batch_size)
        next_row = self.passes.batch_end(row, batch_size * world_size)
        if not self.arguments.shuffle:
            return self.take(rows, first_row=row, next_row=next_row, end=self.passes.end_of(row), new=new)
        reader, step = self._read_ahead, batch_size * world_size * num_readers
        last = reader.batches_ahead(batch_size)
        if reader.is_cold:
            self._ask_for(rows + last * step)
        num_faults = reader.num_faults()
        batch = self.take(rows, first_row=row, next_row=next_row, end=self.passes.end_of(row), new=new)
        if reader.note(num_faults):
            for number in range(1, last + 1):
                self._ask_for(rows + number * step)
        return batch

    def _ask_for(self, rows: NDArray[np.int64]) -> None:
        """Begin to read rows to come; at the end of an epoch, those that follow may be others."""
        if self.num_rows is not None:
            rows = rows[rows < self.num_rows]
        self._read_ahead.ask(self.table, self.order(rows).places)

    def batches(self, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """One batch after the other to the end of the stream, from where it stands, which moves with each.

        Another call goes on there too. Of two at a time the one that was overtaken is refused.
        """
        batch_size, rank, world_size = check_ranks(batch_size, rank, world_size)
        return map(self.hand_out, self._made(batch_size, rank, world_size))

    def _made(self, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
        row = self.begin_pass(batch_size * world_size)
        while self.has_batch(row, batch_size * world_size):
            batch = self.batch_at(row, batch_size, rank, world_size)
            row = batch.next_row
            yield batch

    def begin_pass(self, global_size: int) -> int:
        """Where a pass in this process begins: where the stream stands, or behind what workers have read.

        With `drop_last` the rest of an epoch that is too short for a batch is left out.
        """
        row = self.position.begin_here(self.passes)
        begin = self.passes.batch_begin(row, global_size)
        if begin != row:
            self.position.move_to(begin)
        return begin

    def refuse_ended(self, row: int, global_size: int = 1) -> None:
        """Raise `UsageError` where a pass would begin with no batch before the end."""
        if self.has_batch(row, global_size) or self.num_rows is None:
            return
        if row < self.num_rows:
            raise UsageError(
                f"the stream has ended: its last {self.num_rows - row:,} rows are fewer than a batch of all ranks "
                f"({global_size:,}), and drop_last leaves out incomplete ones",
                help="choose a smaller batch_size, a later end of the stream, or drop_last=False",
            )
        name, end = self.arguments.end
        was, more = f"{end:,}", f"{2 * int(end)}"
        if name == "epochs":
            was, more = f"{end:g}", f"{math.floor(end) + 1}"
        raise UsageError(
            f"the stream has ended: its {was} {name} were read",
            help=f"give it more, as Stream(…, {name}={more}); or read it again as a new Stream, or after "
            "load_state_dict",
        )

    @property
    def epoch(self) -> int:
        """In which the stream stands; 0 where it is one pass."""
        row = self.position.next_pass(self.passes)
        return row // self.passes.epoch_rows if self.passes.epoch_rows else 0

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch; inside it already, nothing is done. A stream of one pass has none."""
        epoch = check_whole_number("epoch", epoch)
        rows = self.passes.epoch_rows
        if rows is None or self.epoch == epoch:
            return
        self.refuse_ended(epoch * rows)
        self.position.move_to(epoch * rows)

    def hand_out(self, batch: Batch, wait_seconds: float | None = 0.0) -> Batch:
        """Move behind a batch that is about to be used; one that is not next is refused."""
        if batch.first_row != self.next_row:
            raise UsageError(
                f"the stream stands at row {self.next_row:,}, and this iteration is at row {batch.first_row:,}: "
                "something else has moved it",
                help="iterate again to go on from there, or give each reader a Stream of its own",
            )
        self.accounting.add(batch, wait_seconds)
        self.position.move_to(batch.next_row)
        return batch

    def has_batch(self, row: int, global_size: int) -> bool:
        """Whether a global batch may begin at a row: before the end, and with `drop_last` whole in its pass."""
        return self.passes.has_batch(row, global_size)

    def num_steps(self, batch_size: int, world_size: int = 1) -> int:
        """How many steps there are from `first_row` to the end."""
        batch_size, _, world_size = check_ranks(batch_size, 0, world_size)
        return self.steps_from(self.first_row, batch_size * world_size)

    def steps_from(self, row: int, global_size: int) -> int:
        """How many steps there are from a row to the end."""
        len(self)
        return self.passes.steps_to_end(row, global_size) or 0

    def where(self, step: int, batch_size: int, world_size: int = 1, rank: int | None = None) -> list[RowOrigins]:
        """The documents behind a step, row by row; of one rank, or of all."""
        from gristmill.stream.where import origins_of  # noqa: PLC0415  (loads the tokenizers' layer)

        batch_size, only, world_size = check_ranks(batch_size, 0 if rank is None else rank, world_size)
        first = self._row_of(step, batch_size * world_size)
        start, stop = first, first + batch_size * world_size
        if rank is not None:
            start, stop = first + only * batch_size, first + (only + 1) * batch_size
        end = self.passes.end_of(first)
        if end is not None:
            start, stop = min(start, end), min(stop, end)
        check_whole_number("the number of rows at once", stop - start, most=MAX_BATCH)
        return origins_of(self.order, self.table, range(start, stop), first, batch_size)

    def state_dict(self, row: int | None = None) -> dict[str, Any]:
        """The state after the last batch that was handed out, or before `row` (`batch.next_row`).

        It is the same on each rank. What a DataLoader hands out the stream does not see: then `row` must be given.
        """
        if row is None and self.position.is_taken:
            raise UsageError(
                "a DataLoader reads this stream, and only its batches say how far it has come",
                help="save dataset.state_after(batch), where dataset is the TorchDataset",
            )
        state = self._state(self.next_row if row is None else check_whole_number("row", row))
        return {name: getattr(state, name) for name in state.__struct_fields__}

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Go on from a state, with any world size and batch size. One of other data or another order is refused.

        `ignore` names what may differ after all: "dataset_hash", "seed", "mixture_hash", "order_version".
        """
        self.first_row = self.check_state(state, ignore).row
        self.position.move_to(self.first_row)
        self.accounting.restart(self.first_row)

    def check_state(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> StreamState:
        """A state that fits this stream; another is refused."""
        saved = parse_state(state)
        check_same(saved, self._state(saved.row), ignore)
        if self.num_rows is not None and saved.row > self.num_rows:
            raise UsageError(f"the state is at row {saved.row:,}, and the stream ends at {self.num_rows:,}")
        return saved

    def _state(self, row: int) -> Any:
        given = self.arguments
        return state_at(row, self.order, seed=given.seed, shuffle=given.shuffle, dataset_hash=self.dataset_hash)

    def __reduce__(self) -> tuple[Any, ...]:
        counts = self.accounting.workers
        return _reopened, (self.arguments, self.dataset_hash, self.first_row, self.position, counts)


def _reopened(
    arguments: StreamArguments, dataset_hash: str, first_row: int, position: Position, counts: WorkerCounts | None
) -> Stream:
    """A stream in another process: opened again from paths and numbers, and still of the same data."""
    stream = Stream.__new__(Stream)
    stream.arguments = arguments
    stream._open()
    if stream.dataset_hash != dataset_hash:
        raise UsageError("the dataset was changed while it was streamed", help="start again, or resume from a state")
    stream.first_row, stream.position = first_row, position
    stream.accounting.restart(position.row)
    stream.accounting.workers = counts
    return stream


def _pad_id(options: Collate, tokenizer: Any) -> int:
    if options.pad_id is not None:
        return options.pad_id
    known = (tokenizer.pad_id, tokenizer.eos_id) if tokenizer is not None else ()
    return next((number for number in known if number is not None), 0)
