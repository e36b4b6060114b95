"""Finding the record that ends its workers, by trying ever smaller pieces of its task alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.engine.failure import Failure
from gristmill.engine.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Generator

    from gristmill.pipeline.work import PartTask


def find_poison(task: Task, failure: Failure, position: int) -> Generator[Task, Any, Task | None]:
    """Yields trials, is sent their outcomes, returns the task without the record; see `engine.tasks.run_tasks`.

    `position` is the cell at which the task died. About log2(records in a cell) trials.
    """
    part: PartTask = task.payload
    cell = max(position, 0)
    num_rows = yield _trial(task, cell, 0, 0)
    if isinstance(num_rows, Failure) or num_rows == 0:
        return None  # the reading itself is fatal
    first, stop = 0, num_rows
    while stop - first > 1:
        middle = (first + stop) // 2
        outcome = yield _trial(task, cell, first, middle)
        if isinstance(outcome, Failure):
            stop = middle
        else:
            first = middle
    last = yield _trial(task, cell, first, stop)
    if not isinstance(last, Failure):
        return None  # no single record is to blame
    excluded = part.excluded | {(cell, _row_before_exclusion(part, cell, first), failure.kind)}
    return Task(task.id, replace(part, excluded=excluded))


def _trial(task: Task, cell: int, first: int, stop: int) -> Task:
    return Task(f"{task.id} rows {first} to {stop} of cell {cell}", replace(task.payload, only=(cell, first, stop)))


def _row_before_exclusion(part: PartTask, cell: int, row: int) -> int:
    """The row as it was read, when `row` counts only those not yet excluded."""
    gone = sorted(found for number, found, _ in part.excluded if number == cell)
    for found in gone:
        if found <= row:
            row += 1
    return row
