"""Epochs as trainers know them: each loop over a loader is one epoch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from gristmill.stream.stream import Stream


def count_epoch_steps(stream: Stream, global_size: int) -> int:
    """Count the steps of a whole epoch; for a stream of one pass, all steps."""
    if stream.passes.epoch_rows is None:
        len(stream)  # raises an error for an endless stream
    return count_pass_steps(stream, 0, global_size)


def count_pass_steps(stream: Stream, row: int, global_size: int) -> int:
    """Count the steps from a row to the end of its pass; 0 at the end of the stream."""
    row = stream.passes.batch_begin(row, global_size)
    if stream.num_rows is not None and row >= stream.num_rows:
        return 0
    steps = stream.passes.steps_in_pass(row, global_size)
    return len(stream) if steps is None else steps


def check_epoch(stream: Stream, global_size: int) -> None:
    """Refuse batches that are longer than an epoch if incomplete ones are left out: there would be no batch at all."""
    rows = stream.passes.epoch_rows
    if rows is not None and stream.arguments.drop_last and rows < global_size:
        raise UsageError(
            f"an epoch has {rows:,} rows, fewer than a batch of all ranks ({global_size:,}), and drop_last leaves out "
            "incomplete ones",
            help="choose a smaller batch_size, a larger rows_per_epoch, or drop_last=False",
        )


def warn_of_endless(stream: Stream) -> None:
    """Warn that another loop over an endless stream continues where the last one ended."""
    if stream.passes.end_of(stream.next_row) is None:
        warnings.warn(
            f"this stream is endless: this loop continues at row {stream.next_row:,}, where the last one ended; set "
            "epochs= or rows_per_epoch= for loops that end",
            stacklevel=3,
        )
