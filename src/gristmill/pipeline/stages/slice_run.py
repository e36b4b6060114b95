"""The run of a slice in a worker: read its cells, run the stage's steps on each, write blocks, keep the books.

All local steps of a stage run one after another on a cell, so a record is read and written once in a stage. Workers
import this module first. It imports what they need and no more: each import is paid for in every worker.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.errors import ParityError
from gristmill.core.records import INPUT_IDS, TEXT, StepResult, count_values
from gristmill.core.step import TextsKernel, apply_kernel
from gristmill.engine.tasks import Unfinished
from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.outputs.dropped import DroppedRecordWriter
from gristmill.pipeline.stages.outputs.quarantine import QuarantineWriter
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.slice_reader import SliceReader
from gristmill.pipeline.stages.stage_context import PIECE_ROWS, SliceResult
from gristmill.pipeline.stages.stored import DroppingRecords
from gristmill.shards.stored_files import StoredFile
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import relative_name
from gristmill.storage.stores.retries import wait_clock
from gristmill.storage.stores.uploads import collect_uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gristmill.core.records import Texts
    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.outputs.score_writer import ScoreWriter
    from gristmill.pipeline.stages.outputs.sinks import Sink
    from gristmill.pipeline.stages.stage_context import LoadedContext, SliceTask, TrialRows
    from gristmill.readers.cells import CellBatch


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
    """One run of one slice: its accounts, and the files that it has open."""

    def __init__(self, loaded: LoadedContext, task: SliceTask, context: Context) -> None:
        self._stage = stage = loaded.context
        self._task = task
        self._context = context
        self._source = stage.sources[task.source]
        self._kernels = loaded.kernels[task.source]
        self._entry_account = Account(step=self._source.entry_account or "")
        self._accounts = [Account(step=step.name) for step in self._source.steps]
        self._reader = SliceReader(stage, task, context, self._entry_account, keeps_strings=self._takes_strings())
        self._stem = open_stem(stage.root, task.stem, stage.run_id, syncs=False, source=task.source)
        self._open_files = ExitStack()
        self._quarantine = self._open_quarantine()
        self._dropped: DroppedRecordWriter | None = None
        if stage.keep_dropped is not None:
            self._dropped = DroppedRecordWriter(
                task.source, stage.keep_dropped, stage.seed, self._reader.paths, partial(self._open_file, "dropped")
            )
        self._scores: ScoreWriter | None = None
        if self._source.score_layout is not None:
            from gristmill.pipeline.stages.outputs.score_writer import ScoreWriter  # noqa: PLC0415  (few recipes need it)

            self._scores = ScoreWriter(self._source.score_layout, self._source.steps)

    def run(self) -> SliceResult:
        # No file has its name before its commit, so a task that fails or is killed leaves nothing that counts. Files
        # that were committed before a later one failed are overwritten when the task runs again.
        with self._open_files, self._open_sink() as sink:
            for cell in self._reader.read_cells():
                self._begin_cell()
                sink.add(self._apply_steps_in_pieces(self._enter_cell(cell), cell.texts))
                if self._scores is not None:
                    self._scores.end_cell()
            sink_result = sink.commit()
            self._reader.finish()
            if self._dropped is not None:
                self._add_dropped_by_barrier(self._dropped)
                self._dropped.finish()
            quarantine = self._commit_files(self._quarantine.file)
            dropped = self._commit_files(self._dropped.file if self._dropped is not None else None)
            scores = self._scores.write(self._stem) if self._scores is not None else []
        # After some barriers the first step accounts for what comes in, and the entry account has no name.
        accounts = [account for account in (self._entry_account, *self._accounts) if account.step]
        return SliceResult(
            split_files=sink_result.split_files,
            held_files=sink_result.held_files,
            leftovers=sink_result.leftovers,
            books=[*accounts, *sink_result.accounts],
            quarantine=quarantine,
            dropped=dropped,
            scores=scores,
            score_histograms=self._scores.histograms if self._scores is not None else {},
        )

    def run_trial(self, trial: TrialRows) -> None:
        """Send the trial's rows through the steps. Each position is reported first: the last one names the killer."""
        with self._open_files:
            for number, cell in enumerate(self._reader.read_cells()):
                if number == trial.cell:
                    self._begin_cell()
                    for start in range(trial.first, min(trial.stop, cell.batch.num_rows), trial.piece_rows):
                        self._context.at(start)
                        self._apply_steps(cell.batch.slice(start, trial.piece_rows))
                    return

    @property
    def _is_plain(self) -> bool:
        """Whether nothing but the steps and the output looks at records. Pieces are cut from batches."""
        task = self._task
        return not (task.trial or task.excluded or task.num_harmless_trials or self._stage.watch)

    def _takes_strings(self) -> bool:
        """Tell whether the texts are needed as Python strings only. Dropped records are taken from batches."""
        return self._is_plain and self._stage.keep_dropped is None and self._needs_strings_only()

    def _needs_strings_only(self) -> bool:
        for kernel in self._kernels:
            if not isinstance(kernel, TextsKernel):
                return False
            if not kernel.keeps_texts:
                return True
        return bool(self._kernels) and not self._source.output.needs_text

    def _open_sink(self) -> Sink:
        output = self._source.output
        return output.open_sink(self._stage.place_sink(self._task.source, self._stem), self._task.num_slices)

    def _open_quarantine(self) -> QuarantineWriter:
        arguments = self._task.source, self._stage.max_quarantine, self._reader.paths
        return QuarantineWriter(*arguments, partial(self._open_file, "quarantine"))

    def _begin_cell(self) -> None:
        """Forget the cell before: what is checked or counted over several records ends with their cell, not the task.

        Otherwise it would depend on where tasks begin whether a record is quarantined.
        """
        for kernel in self._kernels:
            kernel.begin_cell()
        self._quarantine.begin_cell()

    def _enter_cell(self, cell: CellBatch) -> pa.RecordBatch:
        """Count the records of a cell into the books, and return those that the steps get."""
        account = self._entry_account
        account.records_in += cell.batch.num_rows + sum(bad.num_records for bad in cell.quarantined)
        account.records_out += cell.batch.num_rows
        if cell.num_blank:
            account.counters["blank"] += cell.num_blank
        account.counters.update(+cell.counters)
        self._quarantine.add(account, cell.quarantined, cell.batch)
        _add_amounts(account, cell.batch)
        self._context.count(records=cell.batch.num_rows)
        if self._stage.watch is not None:
            self._stage.watch.after_read(self._task.source, cell.batch, cell.quarantined)
        return cell.batch

    def _add_dropped_by_barrier(self, dropped: DroppedRecordWriter) -> None:
        """Add what the barrier before this stage has dropped of the inputs: they are read once more for it."""
        for stored in self._task.inputs:
            if not isinstance(stored, DroppingRecords):
                continue
            for reason, batch in stored.dropped_batches(self._stage.work, self._stage.seed):
                self._context.at(self._reader.cell_number)  # each batch has the whole timeout
                codes = np.ones(batch.num_rows, np.uint8)
                result = StepResult(batch.slice(0, 0), {reason: batch.num_rows}, codes=codes, reasons=(reason,))
                dropped.add(self._entry_account.step, batch, result)

    def _apply_steps_in_pieces(self, batch: pa.RecordBatch, texts: Texts | None) -> pa.RecordBatch:
        if texts is not None:
            batch = self._apply_steps(batch, texts)
            self._entry_account.text_bytes += texts.num_bytes  # after the step, which has looked at the sizes already
            return batch
        if not self._task.num_harmless_trials or batch.num_rows <= PIECE_ROWS:
            return self._apply_steps(batch)
        pieces = []
        for start in range(0, batch.num_rows, PIECE_ROWS):
            self._context.at(self._reader.cell_number)  # each piece has the whole timeout
            pieces.append(self._apply_steps(batch.slice(start, PIECE_ROWS)))
        # One batch again: the pieces must not show as separate blocks in the output.
        return pa.concat_batches(pieces)

    def _apply_steps(self, batch: pa.RecordBatch, texts: Texts | None = None) -> pa.RecordBatch:
        counts: Mapping[str, NDArray[np.int64]] = {}
        steps = zip(self._source.steps, self._kernels, self._accounts, strict=True)
        for number, (step, kernel, account) in enumerate(steps):
            try:
                if texts is not None and isinstance(kernel, TextsKernel):
                    applied = kernel.apply_to_texts(batch, texts, self._stage.seed)
                else:
                    applied = apply_kernel(kernel, batch, self._stage.seed, counts)
            except ParityError as error:  # a kernel knows the number of a file, not its name
                file = error.context.get("file")
                path = self._reader.paths.get(file, self._task.source) if isinstance(file, int) else self._task.source
                raise ParityError(f"{path}: {error.message}", help=error.help, **error.context) from None
            if self._stage.watch is not None:
                self._stage.watch.after_step(self._task.source, step, batch, applied)
            account.records_in += batch.num_rows
            account.created += applied.created
            account.records_out += applied.batch.num_rows
            account.dropped.update(Counter(applied.dropped))
            account.counters.update(applied.counters)
            self._quarantine.add(account, applied.quarantined, batch)
            if self._dropped is not None:
                self._dropped.add(account.step, batch, applied)
            if self._scores is not None:
                self._scores.add(number, batch, applied)
            batch, counts, texts = applied.batch, applied.counts, applied.texts
            _add_amounts(account, batch)
            if texts is not None:
                account.text_bytes += texts.num_bytes
        if self._scores is not None:
            self._scores.end_batch()
        return batch

    def _open_file(self, kind: str) -> PendingFile:
        path = self._stage.root / f"{self._stem.stem}.{kind}.jsonl"
        return self._open_files.enter_context(PendingFile(path, self._stage.run_id))

    def _commit_files(self, file: PendingFile | None) -> list[StoredFile]:
        return [] if file is None else [self._commit_file(file)]

    def _commit_file(self, file: PendingFile) -> StoredFile:
        file.commit(sync=False)
        path = relative_name(file.path, self._stage.root)
        return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)


def _add_amounts(account: Account, batch: pa.RecordBatch) -> None:
    """Add how much text or how many tokens come out. That is a difference of offsets, so it costs nothing."""
    if TEXT in batch.schema.names:
        account.text_bytes += count_values(batch.column(TEXT))
    elif INPUT_IDS in batch.schema.names:
        account.tokens += count_values(batch.column(INPUT_IDS))
