"""Poison: find the record that ends its workers, in few deaths.

A trial runs rows of one cell alone in a new worker and reports its position before each piece, so one death names the
piece. Two trials find the record: pieces of 64 rows, then single rows of the piece. Only a record that ends three more
workers by itself is quarantined (one timeout is enough: nothing else ran alongside it). With the three deaths that made
the task a suspect, a record that kills costs 8 workers, and one that never ends costs 4.

Workers may be killed from outside, those of trials too. So a death counts against a record only if the trial was at
that record when it came: a single record takes milliseconds of the second or more that a trial lasts. A task whose
records all prove harmless is run again, several times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.engine.failure_report import Failure
from gristmill.engine.tasks import Task
from gristmill.pipeline.stages.stage_context import PIECE_ROWS, SliceTask, TrialRows

if TYPE_CHECKING:
    from collections.abc import Generator

_NUM_CONFIRMATIONS = 3
_MAX_TRIALS = 12
"""Trials of a single record, of which some may be killed before they come to it."""
_MAX_HARMLESS_TRIALS = 5
"""How often a task is run again whose records were all found harmless."""
_END = 1 << 62
_WHILE_READING = -1
"""The position of a trial before its first row."""


def find_poison(task: Task, failure: Failure, position: int) -> Generator[Task, Any, Task | None]:
    """Yield trials, receive their outcomes, and return the task to run instead (see `engine.tasks.run_tasks`).

    `position` is the cell at which the task died. Where no single record is to blame, the death may have come from
    outside, or from many records together: the task is run again in small pieces. None: that has been tried, or the
    task joins slices. Once is enough where workers die while they read; where trials pass, it is tried several times.
    """
    if not isinstance(task.payload, SliceTask):
        return None
    slice_task = task.payload
    cell = max(position, 0)
    row = yield from _find_first_failure(task, cell, 0, _END, PIECE_ROWS)
    if row is not None and row >= 0:
        row = yield from _find_first_failure(task, cell, row, row + PIECE_ROWS, 1)
    if row is not None and row >= 0 and (yield from _is_fatal(task, cell, row, failure)):
        excluded = slice_task.excluded | {(cell, _find_row_as_read(slice_task, cell, row), failure.kind)}
        return Task(task.id, replace(slice_task, excluded=excluded))
    num_harmless_trials = slice_task.num_harmless_trials + (_MAX_HARMLESS_TRIALS if row == _WHILE_READING else 1)
    if slice_task.num_harmless_trials >= _MAX_HARMLESS_TRIALS:
        return None
    return Task(task.id, replace(slice_task, num_harmless_trials=num_harmless_trials))


def _find_first_failure(
    task: Task, cell: int, first: int, stop: int, num_rows: int
) -> Generator[Task, Any, int | None]:
    """Run a trial; return the first row of the piece at which it failed, `_WHILE_READING`, or None if it passed."""
    outcome = yield _make_trial(task, cell, first, stop, num_rows)
    return outcome.position if isinstance(outcome, Failure) else None


def _is_fatal(task: Task, cell: int, row: int, failure: Failure) -> Generator[Task, Any, bool]:
    """Run a row by itself until it has ended enough workers, or has passed."""
    num_deaths = 0
    for _ in range(_MAX_TRIALS):
        outcome = yield _make_trial(task, cell, row, row + 1, 1)
        if not isinstance(outcome, Failure):
            return False
        num_deaths += outcome.position == row
        if num_deaths == (1 if failure.kind == "timeout" else _NUM_CONFIRMATIONS):
            return True
    return False


def _make_trial(task: Task, cell: int, first: int, stop: int, num_rows: int) -> Task:
    """Make a trial of the rows `first` to `stop` of one cell, `num_rows` at a time."""
    trial = TrialRows(cell, first, stop, num_rows)
    return Task(f"{task.id}, cell {cell} from row {first}", replace(task.payload, trial=trial))


def _find_row_as_read(slice_task: SliceTask, cell: int, row: int) -> int:
    """Find the number of a row among all rows that were read; `row` counts only those not excluded yet.

    With rows 1 and 2 excluded, row 1 of the trial is row 3 of the cell.
    """
    for excluded_row in sorted(excluded_row for number, excluded_row, _ in slice_task.excluded if number == cell):
        if excluded_row <= row:
            row += 1
    return row
