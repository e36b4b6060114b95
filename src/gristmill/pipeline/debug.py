"""Debug mode: a recipe in this process on a few records, shown after each step, stopped at the first exception.

It is an ordinary run with one worker that is this process, a limit, and a temporary folder for output. The user's
exception reaches the caller as it was raised, so that a debugger finds the frames of the function at fault.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from gristmill.core.errors import GristmillError
from gristmill.core.records import ORIGIN, RECORD
from gristmill.core.step import ReplayableStep
from gristmill.engine.worker import chunk
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.outputs.observers import SliceObserver
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps.column_names import list_value_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import QuarantinedRecord, Records, StepResult
    from gristmill.core.step import LocalStep
    from gristmill.pipeline.run import RunResult
    from gristmill.pipeline.stages.outputs.observers import StepPlace
    from gristmill.readers.cells import CellBatch

MAX_RECORDS = 100
"""Number of records read of each source, unless the caller sets another limit."""
_SHOWN_RECORDS = 3
_SHOWN_CHARS = 160


def run_in_debug_mode(recipe: Recipe, show: Callable[[str], object], *, limit: int | None = None) -> RunResult:
    """Run a recipe on its first records and show what each step makes of them. Never touches the recipe's output.

    The folder of its output is removed when this process ends, or at once if the run fails.

    Raises `FunctionFailedError` from the first exception of a user's function; its notes name the step and the record.
    """
    folder = Path(tempfile.mkdtemp(prefix="gristmill-debug-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # No limit on quarantined records: the first exception ends the run, and all others are shown.
    trial = msgspec.structs.replace(recipe, output=str(folder / "out"), max_quarantine=1.0)
    limit = MAX_RECORDS if limit is None else limit
    options = RunOptions(backend="serial", progress=False, watch=_RecordPrinter(show, limit))
    show("debug mode: this process, nothing is written to the output")
    try:
        return run_recipe(trial, options, limit=limit)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class FunctionFailedError(GristmillError):
    """Carries the user's exception past the engine, which tries a failed task again unless its error is final."""

    is_final = True

    def __init__(self, error: BaseException, traceback: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.traceback = traceback
        """The traceback as text: steps after an untrusted chat template run in a worker, whose frames are lost."""

    def __reduce__(self) -> tuple[type[FunctionFailedError], tuple[BaseException, str]]:
        return FunctionFailedError, (self.error, self.traceback)


class _RecordPrinter(SliceObserver):
    """Shows the first records after each step of each source."""

    def __init__(self, show: Callable[[str], object], limit: int) -> None:
        self._show = show
        self._limit = limit
        self._has_named_worker = False
        self._num_shown: Counter[tuple[str, str, int]] = Counter()

    def after_read(self, source: str, cell: CellBatch) -> None:
        """Show a cell that was read. It may hold more records than the limit lets through."""
        self._report(source, "read", 0, cell.batch.slice(0, self._limit), {}, cell.quarantined)

    def after_step(self, place: StepPlace, before: Records, applied: StepResult) -> None:
        """Show what a step has made of a batch."""
        source, step = place.source, place.step
        # By identity: a recipe may hold the same step twice.
        self._report(source, step.name, id(step), applied.records.batch, applied.dropped, applied.quarantined)
        for record in applied.quarantined:
            if record.reason == "exception":
                _raise_failure(source, step, before.batch, record)

    def _report(
        self,
        source: str,
        name: str,
        number: int,
        batch: pa.RecordBatch,
        dropped: Mapping[str, int],
        bad: list[QuarantinedRecord],
    ) -> None:
        if chunk.is_worker_process() and not self._has_named_worker:
            self._has_named_worker = True
            self._show(
                "the chat template came with a model and might never end, so the steps run in a worker process, "
                "which can be killed: no debugger (--pdb) there"
            )
        room = _SHOWN_RECORDS - self._num_shown[source, name, number]
        if room <= 0 and not bad:
            return
        losses = [f"{count:,} dropped as {reason}" for reason, count in dropped.items()]
        losses += [f"1 quarantined as {record.reason}: {record.message}" for record in bad[:_SHOWN_RECORDS]]
        self._show("\n".join([f"{source} · {name}: {batch.num_rows:,} records", *(f"    {loss}" for loss in losses)]))
        for row in range(min(max(room, 0), batch.num_rows)):
            self._num_shown[source, name, number] += 1
            self._show(f"    {_shorten(_describe(batch, row))}")


def _raise_failure(source: str, step: LocalStep, before: pa.RecordBatch, failed: QuarantinedRecord) -> NoReturn:
    """Call the function on the record once more, so that the exception leaves with all its frames."""
    origins = before.column(ORIGIN).to_pylist()
    row = origins.index({"file": failed.file, "position": failed.position, "part": failed.part})
    error: BaseException
    try:
        if isinstance(step, ReplayableStep):
            step.replay(before.slice(row, 1))
    except (Exception, SystemExit) as raised:
        error = raised
    else:  # it passed this time: only the first exception can be shown
        error = GristmillError(
            f"step {step.name} raised {failed.message}, but not when it was called with the record once more",
            help="the function does not depend on the record alone",
        )
        error.add_note(failed.traceback.rstrip())
    error.add_note(f"in step {step.name} of source {source}, on this record:\n{_describe(before, row)}")
    raise FunctionFailedError(error, failed.traceback)


def _describe(batch: pa.RecordBatch, row: int) -> str:
    """Describe a record as JSON: the JSON record if it has one, then the columns that differ from it."""
    names = [field.name for field in list_value_columns(batch.schema)]
    values = batch.slice(row, 1).select(names).to_pylist()[0] if names else {}
    if RECORD not in batch.schema.names:
        return json.dumps(values, ensure_ascii=False, default=repr)
    line = batch.column(RECORD)[row].as_py().decode("utf-8", "backslashreplace")
    record = json.loads(line)
    more = {name: value for name, value in values.items() if record.get(name) != value}
    return f"{line} + {json.dumps(more, ensure_ascii=False, default=repr)}" if more else str(line)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text):,} characters)"
