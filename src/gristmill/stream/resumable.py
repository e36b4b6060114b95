"""The position of a stream in its order, and its state: everything in `Stream` that makes no batches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gristmill.core.checks import check_whole_number
from gristmill.core.errors import EndlessStreamError, UsageError
from gristmill.stream.lanes.arguments import check_ranks
from gristmill.stream.lanes.position import check_same_stream, make_state, parse_state
from gristmill.stream.pair_collate import PairCollate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gristmill.stream.accounting import Accounting
    from gristmill.stream.collate import Batch
    from gristmill.stream.lanes.arguments import StreamArguments
    from gristmill.stream.lanes.balance import TokenBatches
    from gristmill.stream.lanes.position import Position, StreamState
    from gristmill.stream.lanes.row_order import Passes, RowOrder


class ResumableStream:
    """A position in the order of a stream's rows, which can be saved and loaded."""

    arguments: StreamArguments
    dataset_hash: str
    order: RowOrder
    num_rows: int | None
    """The number of rows until the end; None: the stream is endless."""
    passes: Passes
    """Where passes begin and end."""
    token_batches: TokenBatches | None
    """The batches by a number of tokens; None: batches have a number of rows."""
    accounting: Accounting
    """What was read so far, compared with the plan."""
    first_row: int
    """Where step 0 begins: row 0, or the row of the state that was loaded. Reading does not move it."""
    position: Position
    """Where `batches` and `TorchLoader` continue."""

    @property
    def next_row(self) -> int:
        """The row after the last batch that was used."""
        return self.position.row

    def __len__(self) -> int:
        """The number of rows until the end."""
        if self.num_rows is None:
            raise EndlessStreamError(
                "this stream is endless: it has no length", help="set an end with epochs=, rows= or tokens="
            )
        return self.num_rows

    def begin_pass(self, global_size: int) -> int:
        """Begin a pass in this process, at the stream's position or after what workers have read; return its first row.

        With `drop_last`, the rest of an epoch that is too short for a batch is skipped.
        """
        row = self.position.begin_here(self.passes)
        begin = self.passes.batch_begin(row, global_size)
        if begin != row:
            self.position.move_to(begin)
        return begin

    def restart(self) -> None:
        """Move back to row 0, and count from there."""
        self.position.move_to(0)
        self.accounting.restart(0)

    def refuse_ended(self, row: int, global_size: int = 1) -> None:
        """Raise `UsageError` if no batch is left for a pass that begins at `row`."""
        self.passes.refuse_ended(row, global_size, *self.arguments.end)

    @property
    def epoch(self) -> int:
        """The epoch of the next row; 0 for a stream of one pass."""
        row = self.position.next_pass(self.passes)
        return row // self.passes.epoch_rows if self.passes.epoch_rows else 0

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch, unless the stream is inside it. A stream of one pass ignores this."""
        epoch = check_whole_number("epoch", epoch)
        rows = self.passes.epoch_rows
        if rows is None or self.epoch == epoch:
            return
        self.refuse_ended(epoch * rows)
        self.position.move_to(epoch * rows)

    def advance(self, batch: Batch, wait_seconds: float | None = 0.0) -> Batch:
        """Move the position past a batch that is about to be used. Any batch but the next one is refused."""
        self.position.refuse_other_row(batch.first_row)
        self.accounting.add(batch, wait_seconds)
        self.position.move_to(batch.next_row)
        return batch

    def has_batch(self, row: int, global_size: int) -> bool:
        """Whether a global batch can begin at a row: before the end and, with `drop_last`, complete in its pass."""
        return self.passes.has_batch(row, global_size)

    def num_steps(self, batch_size: int | None = None, world_size: int = 1) -> int:
        """Count the steps from `first_row` to the end."""
        batch_size, _, world_size = self.check_ranks(batch_size, 0, world_size)
        return self.steps_from(self.first_row, batch_size * world_size)

    def check_ranks(self, batch_size: int | None, rank: int = 0, world_size: int = 1) -> tuple[int, int, int]:
        """Check the sizes of a batch and of the world. With `batch_tokens`, each rank has one batch of a step."""
        if batch_size is None and self.token_batches is not None:
            batch_size = 1
        elif self.token_batches is not None:
            raise UsageError(
                "batch_tokens decides how many rows a batch has, so a batch_size cannot be set",
                help="leave out the batch_size, or Stream(…, batch_tokens=…)",
            )
        elif batch_size is None:
            raise UsageError(
                "batch_size is not set", help="set it, or Stream(…, batch_tokens=…) for rows of any length"
            )
        return check_ranks(batch_size, rank, world_size)

    def steps_from(self, row: int, global_size: int) -> int:
        """Count the steps from a row to the end."""
        len(self)  # raises an error for an endless stream
        return self.passes.steps_to_end(row, global_size) or 0

    def state_dict(self, row: int | None = None) -> dict[str, Any]:
        """Return the state after the last batch that was used, or before `row` (`batch.next_row`).

        It is the same on every rank. A stream does not see which batches a DataLoader has delivered, so with one `row`
        is required.
        """
        if row is None and self.position.is_taken:
            raise UsageError(
                "a DataLoader reads this stream, so only its batches know how far it is",
                help="save dataset.state_after(batch), where dataset is the TorchDataset",
            )
        state = self._state(self.next_row if row is None else check_whole_number("row", row))
        return {name: getattr(state, name) for name in state.__struct_fields__}

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Resume from a state, with any world size and batch size. A state of other data or another order is refused.

        `ignore` names what may differ: "dataset_hash", "seed", "mixture_hash", "order_version".
        """
        self.first_row = self.check_state(state, ignore).row
        self.position.move_to(self.first_row)
        self.accounting.restart(self.first_row)

    def check_state(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> StreamState:
        """Parse a state and refuse it if it does not fit this stream."""
        saved = parse_state(state)
        check_same_stream(saved, self._state(saved.row), ignore)
        if self.num_rows is not None and saved.row > self.num_rows:
            raise UsageError(f"the state is at row {saved.row:,}, and the stream ends at {self.num_rows:,}")
        return saved

    def _state(self, row: int) -> StreamState:
        seed, shuffle = self.arguments.seed, self.arguments.shuffle
        window = None if self.token_batches is None else self.token_batches.describe_window(row)
        return make_state(row, self.order, seed=seed, shuffle=shuffle, dataset_hash=self.dataset_hash, window=window)


def check_stream(stream: Any, user: object, *, by_rows: bool = False) -> None:
    """Refuse anything but a stream, such as the folder of a dataset, for `user`, an object that reads one.

    `by_rows` says that it reads single rows, so it has no use for batches by tokens.
    """
    if not isinstance(stream, ResumableStream):
        shown = f"{stream!r:.80}"
        name = type(user).__name__
        raise UsageError(
            f"{name} reads a Stream, not {shown}",
            help=f"{name}(Stream({shown}), …)"
            if isinstance(stream, str | os.PathLike)
            else "make a Stream of the data",
        )
    if by_rows and isinstance(getattr(stream, "collate", None), PairCollate):
        raise UsageError(
            f"{type(user).__name__} reads single arrays, but a row of preferences is several sequences",
            help="use TorchLoader or TorchDataset",
        )
    if by_rows and stream.token_batches is not None:
        raise UsageError(
            f"{type(user).__name__} reads rows one by one, but batch_tokens puts them into batches",
            help="use TorchLoader or TorchDataset, or leave out batch_tokens",
        )
