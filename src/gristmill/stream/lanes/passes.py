"""Where passes over a stream begin and end, and which rows each of their steps has: arithmetic without state.

With epochs of N rows, pass e is rows [eN, (e+1)N). A global batch never extends into the next pass: the last batch of a
pass is filled up with empty rows or, with `drop_last`, left out. After it comes row (e+1)N, whatever the batch size. So
a run that resumes with other batch sizes sees the same epochs. A stream without epochs is one pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gristmill.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one stream.

    >>> passes = Passes(epoch_rows=10, num_rows=25, drop_last=False)
    >>> [passes.batch_end(row, 4) for row in (0, 4, 8, 20, 24)]
    [4, 8, 10, 24, 25]
    >>> passes.steps_to_end(0, 4), passes.steps_in_pass(6, 4), passes.row_of_step(0, 3, 4)
    (8, 1, 10)
    """

    epoch_rows: int | None
    """None: the stream is one pass."""
    num_rows: int | None
    """The number of rows until the end; None: the stream is endless."""
    drop_last: bool

    def end_of(self, row: int) -> int | None:
        """Return the end of the pass that a row is in; None: it is endless."""
        if self.epoch_rows is None:
            return self.num_rows
        end = (row // self.epoch_rows + 1) * self.epoch_rows
        return end if self.num_rows is None else min(end, self.num_rows)

    def later_pass(self, row: int, count: int) -> int:
        """Return the first row of the pass that is `count` passes after the one at `row`, or the end of the stream."""
        if count == 0:
            return row
        end = self.end_of(row)
        if end is None or self.epoch_rows is None:
            return row if end is None else end
        later = end + (count - 1) * self.epoch_rows
        return later if self.num_rows is None else min(later, self.num_rows)

    def has_batch(self, row: int, global_size: int) -> bool:
        """Whether a global batch can begin at a row, within its pass."""
        if self.num_rows is not None and row >= self.num_rows:
            return False
        end = self.end_of(row)
        return end is None or row + (global_size if self.drop_last else 1) <= end

    def batch_end(self, row: int, global_size: int) -> int:
        """Return the next row after the global batch that begins at `row`."""
        end = self.end_of(row)
        # With `drop_last` the rest of an epoch is skipped. The rest of the stream is not: a resumed run with smaller
        # batches may still read it.
        needed = global_size if self.drop_last and self.epoch_rows is not None else 0
        return row + global_size if end is None or row + global_size + needed <= end else end

    def batch_begin(self, row: int, global_size: int) -> int:
        """Return the row of the next global batch: `row`, or the next pass if the rest of this one is too short."""
        is_short = self.epoch_rows is not None and not self.has_batch(row, global_size)
        return self.later_pass(row, 1) if is_short else row

    def steps_in_pass(self, row: int, global_size: int) -> int | None:
        """Count the steps from a row to the end of its pass; None: it is endless."""
        end = self.end_of(row)
        return None if end is None else self._steps(end - row, global_size)

    def steps_to_end(self, row: int, global_size: int) -> int | None:
        """Count the steps from a row to the end of the stream; None: it is endless."""
        if self.num_rows is None:
            return None
        if row >= self.num_rows:
            return 0
        end = self.end_of(row) or 0
        epochs, rest = divmod(self.num_rows - end, self.epoch_rows) if self.epoch_rows else (0, 0)
        whole = epochs * self._steps(self.epoch_rows or 0, global_size)
        return self._steps(end - row, global_size) + whole + self._steps(rest, global_size)

    def row_of_step(self, first_row: int, step: int, global_size: int) -> int:
        """Return the row of a step, counted from `first_row`. It is past the end if there is no such step."""
        first_steps = self.steps_in_pass(first_row, global_size)
        if first_steps is None or step < first_steps or self.epoch_rows is None:
            return first_row + step * global_size
        steps = self._steps(self.epoch_rows, global_size)
        if not steps:  # an epoch is shorter than a batch, and `drop_last` leaves it out
            return first_row + step * global_size if self.num_rows is None else self.num_rows
        epochs, step = divmod(step - first_steps, steps)
        return (first_row // self.epoch_rows + 1 + epochs) * self.epoch_rows + step * global_size

    def refuse_ended(self, row: int, global_size: int, end_name: str, end: float) -> None:
        """Raise `UsageError` if no batch is left for a pass that begins at `row`.

        `end_name` and `end` are the argument that ends the stream and its value: `epochs`, 3.
        """
        if self.num_rows is None or self.has_batch(row, global_size):
            return
        if row < self.num_rows:
            raise UsageError(
                f"the stream has ended: its last {self.num_rows - row:,} rows are fewer than a batch of all ranks "
                f"({global_size:,}), and drop_last leaves out incomplete ones",
                help="choose a smaller batch_size, a later end of the stream, or drop_last=False",
            )
        old_end, later_end = f"{end:,}", f"{2 * int(end)}"
        if end_name == "epochs":
            old_end, later_end = f"{end:g}", f"{math.floor(end) + 1}"
        raise UsageError(
            f"the stream has ended: its {old_end} {end_name} were read",
            help=f"set a later end, for example Stream(…, {end_name}={later_end}); to read it again, make a new Stream "
            "or call load_state_dict",
        )

    def _steps(self, rows: int, global_size: int) -> int:
        rows = max(rows, 0)
        return rows // global_size if self.drop_last else -(-rows // global_size)
