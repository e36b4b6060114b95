"""Finding the record that ends its workers, in few deaths.

A trial runs rows of one cell alone in a new worker and says before each piece where it is, so that one death names the
piece. Two trials find the record: pieces of 64 rows, then single rows of the piece. Only a record that ends three more
workers by itself is to blame (one timeout is enough: nothing else ran beside it). With the three deaths that made the
task a suspect, a record that kills costs 8 workers, one that never ends costs 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.engine.failure import Failure
from gristmill.engine.tasks import Task
from gristmill.pipeline.stages.slice_task import PIECE_ROWS

if TYPE_CHECKING:
    from collections.abc import Generator

    from gristmill.pipeline.stages.slice_task import SliceTask

_NUM_CONFIRMATIONS = 3
_END = 1 << 62


def find_poison(task: Task, failure: Failure, position: int) -> Generator[Task, Any, Task | None]:
    """Yields trials, is sent their outcomes, returns the task to run instead; see `engine.tasks.run_tasks`.

    `position` is the cell at which the task died. Where no record can be blamed, the death may have come from outside,
    or from many records at once: the task is run once more in small pieces. None: that has been tried.
    """
    part: SliceTask = task.payload
    cell = max(position, 0)
    row = yield from _find_first_failure(task, cell, 0, _END, PIECE_ROWS)
    if row >= 0:
        row = yield from _find_first_failure(task, cell, row, row + PIECE_ROWS, 1)
    if row >= 0 and (yield from _is_fatal(task, cell, row, failure)):
        excluded = part.excluded | {(cell, _row_before_exclusion(part, cell, row), failure.kind)}
        return Task(task.id, replace(part, excluded=excluded))
    return None if part.in_pieces else Task(task.id, replace(part, in_pieces=True))


def _find_first_failure(task: Task, cell: int, first: int, stop: int, num_rows: int) -> Generator[Task, Any, int]:
    """The first row of the piece at which a trial of these rows failed; -1: it passed, or failed while reading."""
    outcome = yield _make_trial(task, cell, first, stop, num_rows)
    return outcome.position if isinstance(outcome, Failure) else -1


def _is_fatal(task: Task, cell: int, row: int, failure: Failure) -> Generator[Task, Any, bool]:
    for _ in range(1 if failure.kind == "timeout" else _NUM_CONFIRMATIONS):
        outcome = yield _make_trial(task, cell, row, row + 1, 1)
        if not isinstance(outcome, Failure):
            return False
    return True


def _make_trial(task: Task, cell: int, first: int, stop: int, num_rows: int) -> Task:
    """Rows `first` to `stop` of one cell, `num_rows` at a time."""
    only = (cell, first, stop, num_rows)
    return Task(f"{task.id}, cell {cell} from row {first}", replace(task.payload, trial_rows=only))


def _row_before_exclusion(part: SliceTask, cell: int, row: int) -> int:
    """The row as it was read, when `row` counts only those not yet excluded."""
    gone = sorted(found for number, found, _ in part.excluded if number == cell)
    for found in gone:
        if found <= row:
            row += 1
    return row
