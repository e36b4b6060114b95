"""The run of a slice in a worker: read its cells, run the stage's steps on each, write blocks, keep the books.

All local steps of a stage run one after another on a cell, so a record is read and written once in a stage. Workers
import this module first. It imports what they need and no more: each import is paid for in every worker.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.errors import ParityError
from gristmill.core.records import Records
from gristmill.engine.tasks import Unfinished
from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.outputs.dropped import DroppedRecordWriter
from gristmill.pipeline.stages.outputs.observers import BookKeeper, LineFile, SliceObserver, StepPlace
from gristmill.pipeline.stages.outputs.quarantine import QuarantineWriter
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.slice_reader import SliceReader
from gristmill.pipeline.stages.stage_context import PIECE_ROWS, SliceResult
from gristmill.storage.stores.retries import wait_clock
from gristmill.storage.stores.uploads import collect_uploads

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.pipeline.stages.stage_context import LoadedContext, SliceTask, TrialRows


STORE_COUNT = "store:"
"""How the names of counts of stores begin."""


def run_unit_task(task: Task, context: Context) -> SliceResult | None:
    """Run a task of a unit: a `SliceTask` or a `JoinTask`; `context.state` is the `LoadedContext`."""
    return run_join(task, context) if isinstance(task.payload, JoinTask) else run_slice(task, context)


def run_measured(function: Callable[[Task, Context], Any], task: Task, context: Context) -> Any:
    """Run any task, and count how long it waited for stores and what it read there, if it did.

    It need not wait for the end of its uploads, only for those of the task before: so no more than two hold memory.
    """
    before = wait_clock.show(perf_counter())
    with collect_uploads() as uploads:
        result = function(task, context)
        wait_clock.add_wait(context.wait_for_last_task())
    after = wait_clock.show(perf_counter())
    if after.reads > before.reads or after.wait_ms > before.wait_ms:
        names = (f"{STORE_COUNT}{name}" for name in after._fields)
        context.count(**{name: new - old for name, new, old in zip(names, after, before, strict=True)})
    return Unfinished(result, uploads.complete) if uploads else result


def run_slice(task: Task, context: Context) -> SliceResult | None:
    """Run a `SliceTask`; `context.state` is the `LoadedContext`. A trial gives None."""
    run = _SliceRun(context.state, task.payload, context)
    if task.payload.trial is None:
        return run.run()
    run.run_trial(task.payload.trial)
    return None


class _SliceRun:
    """One run of one slice: its reader, the kernels of its steps, its sink, and what watches them."""

    def __init__(self, loaded: LoadedContext, task: SliceTask, context: Context) -> None:
        self._stage = stage = loaded.context
        self._task = task
        self._context = context
        self._source = source = stage.sources[task.source]
        self._kernels = loaded.kernels[task.source]
        self._places = [StepPlace(task.source, number, step) for number, step in enumerate(source.steps)]
        self._books = BookKeeper(source.entry_account, source.steps)
        self._reader = SliceReader(stage, task, context, self._books.entry)
        self._observers: list[SliceObserver] = []
        """None in a trial, which leaves nothing."""
        self._lost: Counter[str] = Counter()
        """The records of a cell that are gone, for those who watch the run."""

    def run(self) -> SliceResult:
        # No file has its name before its commit, so a task that fails or is killed leaves nothing that counts. Files
        # that were committed before a later one failed are overwritten when the task runs again.
        stem = open_stem(self._stage.root, self._task.stem, self._stage.run_id, syncs=False, source=self._task.source)
        sink_stem = self._stage.place_sink(self._task.source, stem)
        output = self._source.output
        with ExitStack() as files, output.open_sink(sink_stem, self._task.num_slices) as sink:
            self._observers = self._open_observers(stem, files)
            for cell in self._reader.read_cells():
                self._begin_cell()
                for observer in self._observers:
                    observer.after_read(self._task.source, cell)
                self._context.count(records=cell.rows.num_rows)
                self._lost.clear()
                self._lost["quarantined"] += sum(bad.num_records for bad in cell.quarantined)
                records = self._apply_steps_in_pieces(cell.records)
                self._context.count(**+self._lost)
                sink.add(records.batch if output.needs_text else records.rows)
                for observer in self._observers:
                    observer.end_cell()
            outcome = sink.commit()
            self._reader.finish()
            watched: dict[str, Any] = {}
            for observer in self._observers:
                watched |= observer.commit()
        watched["books"] += outcome.accounts
        return SliceResult(
            split_files=outcome.split_files,
            held_files=outcome.held_files,
            leftovers=outcome.leftovers,
            **watched,
        )

    def run_trial(self, trial: TrialRows) -> None:
        """Send the trial's rows through the steps. Each position is reported first: the last one names the killer."""
        for number, cell in enumerate(self._reader.read_cells()):
            if number == trial.cell:
                self._begin_cell()
                for start in range(trial.first, min(trial.stop, cell.batch.num_rows), trial.piece_rows):
                    self._context.at(start)
                    self._apply_steps(Records(cell.batch.slice(start, trial.piece_rows)))
                return

    def _open_observers(self, stem: OutputStem, files: ExitStack) -> list[SliceObserver]:
        stage, source, paths = self._stage, self._source, self._reader.paths
        entry_step = self._books.entry.step
        quarantine = QuarantineWriter(entry_step, stage.max_quarantine, paths, LineFile(stem, "quarantine", files))
        observers: list[SliceObserver] = [self._books, quarantine]
        if stage.keep_dropped is not None:
            file = LineFile(stem, "dropped", files)
            read_dropped = self._reader.read_dropped
            observers.append(
                DroppedRecordWriter(
                    self._task.source, entry_step, stage.keep_dropped, stage.seed, paths, file, read_dropped
                )
            )
        if source.score_layout is not None:
            from gristmill.pipeline.stages.outputs.score_writer import ScoreWriter  # noqa: PLC0415  (few recipes need it)

            observers.append(ScoreWriter(source.score_layout, source.steps, stem))
        if stage.watch is not None:
            observers.append(stage.watch)
        return observers

    def _begin_cell(self) -> None:
        """Forget the cell before: what is checked or counted over several records ends with their cell, not the task.

        Otherwise it would depend on where tasks begin whether a record is quarantined.
        """
        for kernel in self._kernels:
            kernel.begin_cell()

    def _apply_steps_in_pieces(self, records: Records) -> Records:
        if not self._task.num_harmless_trials or records.num_rows <= PIECE_ROWS:
            return self._apply_steps(records)
        pieces = []
        for start in range(0, records.num_rows, PIECE_ROWS):
            self._context.at(self._reader.cell_number)  # each piece has the whole timeout
            pieces.append(self._apply_steps(Records(records.batch.slice(start, PIECE_ROWS))).batch)
        # One batch again: the pieces must not show as separate blocks in the output.
        return Records(pa.concat_batches(pieces))

    def _apply_steps(self, records: Records) -> Records:
        for place, kernel in zip(self._places, self._kernels, strict=True):
            try:
                applied = kernel.apply_to(records, self._stage.seed)
            except ParityError as error:  # a kernel knows the number of a file, not its name
                file = error.context.get("file")
                path = self._reader.paths.get(file, self._task.source) if isinstance(file, int) else self._task.source
                raise ParityError(f"{path}: {error.message}", help=error.help, **error.context) from None
            self._lost["dropped"] += sum(applied.dropped.values())
            self._lost["quarantined"] += len(applied.quarantined)
            for observer in self._observers:
                observer.after_step(place, records, applied)
            records = applied.records
        return records
