"""Epochs as trainers know them: a loop over a loader is one, and the next loop the next."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from gristmill.stream.stream import Stream


def count_epoch_steps(stream: Stream, global_size: int) -> int:
    """Of a whole one; of a stream that is one pass, all steps."""
    if stream.passes.epoch_rows is None:
        len(stream)  # refuses an endless one
    return count_pass_steps(stream, 0, global_size)


def count_pass_steps(stream: Stream, row: int, global_size: int) -> int:
    """Of the pass that begins at a row, to its end; 0 at the end of the stream."""
    row = stream.passes.batch_begin(row, global_size)
    if stream.num_rows is not None and row >= stream.num_rows:
        return 0
    steps = stream.passes.steps_in_pass(row, global_size)
    return len(stream) if steps is None else steps


def check_epoch(stream: Stream, global_size: int) -> None:
    """Refuse batches that are longer than an epoch where incomplete ones are left out: nothing would ever come."""
    rows = stream.passes.epoch_rows
    if rows is not None and stream.arguments.drop_last and rows < global_size:
        raise UsageError(
            f"an epoch has {rows:,} rows, fewer than a batch of all ranks ({global_size:,}), and drop_last leaves out "
            "incomplete ones",
            help="choose a smaller batch_size, a larger rows_per_epoch, or drop_last=False",
        )


def warn_of_endless(stream: Stream) -> None:
    """Say that another loop over an endless stream goes on where the last one was left."""
    if stream.passes.end_of(stream.next_row) is None:
        warnings.warn(
            f"this stream is endless: this loop goes on at row {stream.next_row:,}, where the last one was left; for "
            "loops that end give it epochs= or rows_per_epoch=",
            stacklevel=3,
        )
