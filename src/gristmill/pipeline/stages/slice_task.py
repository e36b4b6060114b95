"""What a worker does with one task: read cells, run the fused steps on each, write blocks, keep the books.

One cell is in memory at a time (about 4 MiB of input), whatever the size of the file. Small files share one.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.errors import SourceChangedError, TooManyBadError
from gristmill.core.recipe import runs_user_code
from gristmill.core.records import INPUT_IDS, ORIGIN, TEXT, count_values
from gristmill.core.step import apply_kernel
from gristmill.engine.worker import nesting
from gristmill.pipeline.planning.units import Span, cluster_small_files
from gristmill.pipeline.stages import quarantine
from gristmill.pipeline.stages.dropped import DroppedRecordWriter
from gristmill.pipeline.stages.packing import PackingSink
from gristmill.pipeline.stages.sink import OutputStem, RecordSink, SplitFile
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.shards.manifest import StoredFile
from gristmill.steps.read import CELL_BYTES, CellBatch, open_reader, read_small_files
from gristmill.steps.records.record_functions import quarantine_row
from gristmill.storage.commit import PendingFile
from gristmill.storage.files import read_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.core.records import QuarantinedRecord, SourceFile, StepResult
    from gristmill.core.step import LocalStep, StepKernel
    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.stored import StoredRecords
    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.read import Read
    from gristmill.steps.write import Write

MAX_CONSECUTIVE_QUARANTINED = 100
_BYTES_PER_ROW = 1 << 10  # a guess, for progress only
PIECE_ROWS = 64
"""How many rows a task that ran into trouble sends through the steps at a time."""


@dataclass(frozen=True, slots=True)
class SourceStage:
    """How one source's records go through one leg: the same for all its tasks."""

    read: Read
    schema: pa.Schema
    """Of what is read."""
    steps: tuple[LocalStep, ...]
    output_schema: pa.Schema
    write: Write | None
    """None: for a later leg."""
    pack: Pack | None = None
    """How documents become rows, in the last leg of a recipe that packs."""
    pad_id: int = 0
    entry_account: str | None = "read"
    """The name of the account for what comes in: `read`, or the barrier that the records have passed."""
    holds_train: bool = False
    """What is for training is not written yet: it waits to be interleaved with other sources (`mixed_lane`)."""


class StepWatch(Protocol):
    """Looks on while records go through the steps: debug mode."""

    def after_read(self, source: str, batch: pa.RecordBatch, bad: list[QuarantinedRecord]) -> None:
        """A cell was read."""

    def after_step(self, source: str, step: LocalStep, before: pa.RecordBatch, applied: StepResult) -> None:
        """A step was applied to a batch."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """What every worker is told once."""

    root: Path
    run_id: str
    seed: int
    max_quarantine: float
    sources: Mapping[str, SourceStage]
    """By source."""
    keep_dropped: str | None
    watch: StepWatch | None

    @property
    def runs_untrusted_templates(self) -> bool:
        return any(step.runs_untrusted_code for leg in self.sources.values() for step in leg.steps)

    def load(self) -> LoadedContext:
        """With the kernels of all steps: what a worker holds from task to task."""
        is_watched = self.watch is not None
        kernels = {
            name: [step.load_stopping() if is_watched else step.load() for step in leg.steps]
            for name, leg in self.sources.items()
        }
        return LoadedContext(self, kernels)


@dataclass(frozen=True, slots=True)
class LoadedContext:
    """A stage in a worker that runs its steps."""

    context: StageContext
    kernels: Mapping[str, Sequence[StepKernel]]
    """By source, one a step."""


@dataclass(frozen=True, slots=True)
class SliceTask:
    """One unit, or a part of one."""

    source: str
    inputs: tuple[Span | StoredRecords, ...]
    stem: str
    """Where its files go, below the output folder."""
    complete: bool
    """It is the whole unit, so that what it writes are shards."""
    excluded: frozenset[tuple[int, int, str]] = frozenset()
    """Records that end their workers: number of the cell in this task, row in it, and the reason."""
    trial_rows: tuple[int, int, int, int] | None = None
    """A trial: nothing but rows of one cell, so many at a time, and no output: cell, first row, stop, rows a piece."""
    in_pieces: bool = False
    """Send few rows at a time through the steps: a cell as a whole was too much for a worker."""

    @property
    def size(self) -> int:
        """How much there is to do, for progress: bytes of input, a guess where rows come from an earlier leg."""
        return sum(map(_input_size, self.inputs))


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A task's account of itself; becomes its receipt."""

    split_files: list[SplitFile]
    held_files: list[SplitFile] = []
    """Records for training that wait to be interleaved (`mixed_lane`), as Arrow streams of what is to be written."""
    leftovers: list[SplitFile] = []
    """Documents of rows that others are to fill (`packing`)."""
    books: list[Account]
    quarantine: list[StoredFile] = []
    dropped: list[StoredFile] = []


def set_up_worker(stage: StageContext, *, loads: bool) -> StageContext | LoadedContext:
    """What a worker does before its first task; `loads` where it will run the steps."""
    if nesting.is_worker_process():
        logging.getLogger("gristmill.kernels").setLevel(logging.ERROR)  # the parent has said what there is to say
    if nesting.is_worker_process() and not any(runs_user_code(leg.steps) for leg in stage.sources.values()):
        block_pandas_import()
    return stage.load() if loads else stage


def run_slice(task: Task, context: Context) -> SliceResult | None:
    """The function of every leg's tasks; `context.state` is the `LoadedContext`."""
    run = _SliceRun(context.state, task.payload, context)
    if task.payload.trial_rows is None:
        return run.run()
    run.run_trial(*task.payload.trial_rows)
    return None


class _SliceRun:
    def __init__(self, loaded: LoadedContext, part: SliceTask, context: Context) -> None:
        self._stage = stage = loaded.context
        self._part = part
        self._context = context
        self._leg = stage.sources[part.source]
        self._kernels = loaded.kernels[part.source]
        for kernel in self._kernels:
            kernel.begin_task()
        self._opening = Account(step=self._leg.entry_account or "")
        self._accounts = [Account(step=step.name) for step in self._leg.steps]
        self._consecutive_quarantined: Counter[int] = Counter()
        """By account."""
        self._paths: dict[int, str] = {}
        self._progress = 0.0
        """How much of the task's size is done."""
        self._cell_number = 0
        """Of the cell that is being read or has been read last."""
        self._files = ExitStack()
        self._quarantine: PendingFile | None = None
        self._dropped: DroppedRecordWriter | None = None
        if stage.keep_dropped is not None:
            opens = partial(self._open_file, "dropped")
            self._dropped = DroppedRecordWriter(part.source, stage.keep_dropped, stage.seed, self._paths, opens)

    def run(self) -> SliceResult:
        with self._files, self._open_sink() as sink:
            for cell in self._read_cells():
                sink.add(self._apply_steps_in_pieces(self._enter_cell(cell)))
            written = sink.commit()
            self._advance(self._part.size - self._progress)
            if self._dropped is not None:
                self._dropped.finish()
            set_aside = self._commit_file(self._quarantine)
            dropped = self._commit_file(self._dropped.file if self._dropped is not None else None)
        accounts = [account for account in (self._opening, *self._accounts) if account.step]
        return SliceResult(
            split_files=written.split_files,
            held_files=written.held_files,
            leftovers=written.leftovers,
            books=[*accounts, *written.accounts],
            quarantine=set_aside,
            dropped=dropped,
        )

    def _open_sink(self) -> RecordSink | PackingSink:
        leg, part = self._leg, self._part
        place = OutputStem(self._stage.root, part.stem, self._stage.run_id)
        if leg.write is not None and not part.complete and leg.write.needs_sequence(leg.output_schema):
            return RecordSink(None, leg.output_schema, place, complete=True)  # written when the unit is joined
        if leg.pack is None or leg.write is None:
            return RecordSink(leg.write, leg.output_schema, place, complete=part.complete, holds_train=leg.holds_train)
        if part.complete:
            return PackingSink(leg.pack, leg.pad_id, leg.write, place, holds_train=leg.holds_train)
        return RecordSink(None, leg.output_schema, place, complete=True)  # packed when the unit is joined

    def run_trial(self, number: int, first: int, stop: int, num_rows: int) -> None:
        """Send some rows of one cell through the steps, a few at a time, to see where that kills."""
        with self._files:
            for found, cell in enumerate(self._read_cells()):
                if found == number:
                    for start in range(first, min(stop, cell.batch.num_rows), num_rows):
                        self._context.at(start)
                        self._apply_steps(cell.batch.slice(start, num_rows))
                    return

    def _read_cells(self) -> Iterator[CellBatch]:
        for cell in self._read_inputs():
            if self._part.trial_rows is None:  # positions of a trial are rows
                self._context.at(self._cell_number)
            if self._part.excluded:
                self._exclude_poison(cell, self._cell_number)
            yield cell
            self._cell_number += 1

    def _read_inputs(self) -> Iterator[CellBatch]:
        for stored in self._part.inputs:
            if not isinstance(stored, Span):
                yield from self._read_stored(stored)
        for cluster in cluster_small_files(source for source in self._part.inputs if isinstance(source, Span)):
            if len(cluster) > 1:
                yield from read_small_files(self._leg.read, self._check_each_file(cluster), self._leg.schema)
            else:
                yield from self._read_span(*cluster)

    def _read_span(self, span: Span) -> Iterator[CellBatch]:
        self._paths[span.file.id] = span.file.relative
        self._count_empty_file(span)
        if span.piece is None or span.piece.path == span.file.path:
            _check_unchanged(span)
        reader = open_reader(self._leg.read, span.file, self._leg.schema, piece=span.piece)
        num_cells = span.num_bytes / CELL_BYTES if span.stop is None else span.stop - span.first
        for cell in reader.read_cells(span.first, span.stop):
            yield cell
            self._advance(span.num_bytes / max(num_cells, 1))

    def _check_each_file(self, cluster: Iterable[Span]) -> Iterator[SourceFile]:
        """Each file when its turn comes to be read."""
        for span in cluster:
            self._context.at(self._cell_number)  # the timeout is for one file, not for thousands
            self._paths[span.file.id] = span.file.relative
            self._count_empty_file(span)
            _check_unchanged(span)
            yield span.file
            self._advance(span.num_bytes)

    def _count_empty_file(self, span: Span) -> None:
        if not span.file.num_bytes:
            self._opening.counters["empty_files"] += 1

    def _read_stored(self, stored: StoredRecords) -> Iterator[CellBatch]:
        num_given = 0
        for number, batch in enumerate(stored.batches(self._stage.root, self._stage.seed)):
            num_given += batch.num_rows
            if stored.is_copy:  # they did not come in, as `_take` will have it: they came before
                self._opening.records_in -= batch.num_rows
                self._opening.created += batch.num_rows
            yield CellBatch(number, batch)
            self._advance(batch.num_rows * _BYTES_PER_ROW)
        for reason, count in stored.count_dropped(num_given).items():
            self._opening.records_in += count
            self._opening.dropped[reason] += count
        self._opening.counters.update(stored.counters)

    def _advance(self, amount: float) -> None:
        """Report that more of the task's size is done; never more than all of it."""
        before, self._progress = self._progress, min(self._progress + amount, self._part.size)
        self._context.count(bytes=int(self._progress) - int(before))

    def _exclude_poison(self, cell: CellBatch, number: int) -> None:
        rows = {row: reason for found, row, reason in self._part.excluded if found == number}
        if rows:
            message = "this record ended every worker that ran it, alone and with others (in which step is not known)"
            cell.quarantined = [
                *cell.quarantined,
                *(quarantine_row(cell.batch, row, rows[row], message) for row in sorted(rows)),
            ]
            keep = np.ones(cell.batch.num_rows, dtype=bool)
            keep[list(rows)] = False
            cell.batch = cell.batch.filter(pa.array(keep))

    def _enter_cell(self, cell: CellBatch) -> pa.RecordBatch:
        self._opening.records_in += cell.batch.num_rows + sum(bad.num_records for bad in cell.quarantined)
        self._opening.records_out += cell.batch.num_rows
        if cell.num_blank:
            self._opening.counters["blank"] += cell.num_blank
        self._opening.counters.update(+cell.counters)
        self._quarantine_records(self._opening, cell.quarantined, cell.batch)
        _add_amounts(self._opening, cell.batch)
        self._context.count(records=cell.batch.num_rows)
        if self._stage.watch is not None:
            self._stage.watch.after_read(self._part.source, cell.batch, cell.quarantined)
        return cell.batch

    def _apply_steps_in_pieces(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._part.in_pieces or batch.num_rows <= PIECE_ROWS:
            return self._apply_steps(batch)
        pieces = []
        for start in range(0, batch.num_rows, PIECE_ROWS):
            self._context.at(self._cell_number)  # each piece has the whole timeout
            pieces.append(self._apply_steps(batch.slice(start, PIECE_ROWS)))
        return pa.concat_batches(pieces)

    def _apply_steps(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        counts: Mapping[str, NDArray[np.int64]] = {}
        for step, kernel, account in zip(self._leg.steps, self._kernels, self._accounts, strict=True):
            applied = apply_kernel(kernel, batch, self._stage.seed, counts)
            if self._stage.watch is not None:
                self._stage.watch.after_step(self._part.source, step, batch, applied)
            account.records_in += batch.num_rows
            account.created += applied.created
            account.records_out += applied.batch.num_rows
            account.dropped.update(Counter(applied.dropped))
            account.counters.update(applied.counters)
            self._quarantine_records(account, applied.quarantined, batch)
            if self._dropped is not None:
                self._dropped.add(account.step, batch, applied)
            batch, counts = applied.batch, applied.counts
            _add_amounts(account, batch)
        return batch

    def _quarantine_records(self, account: Account, bad: list[QuarantinedRecord], seen: pa.RecordBatch) -> None:
        if not bad:
            if seen.num_rows:
                self._consecutive_quarantined[id(account)] = 0
            return
        for record in bad:
            account.quarantined[record.reason] += record.num_records
            path = self._paths.get(record.file)
            line = quarantine.encode_line(self._part.source, path, account.step, record)
            self._quarantine_file().write(line)
        before = self._consecutive_quarantined[id(account)]
        first, longest, end = quarantine.measure_quarantined_runs(seen.column(ORIGIN), bad)
        num_in_a_row = max(before + first, longest)
        self._consecutive_quarantined[id(account)] = before + first if first == end == len(bad) else end
        # Where all records may be set aside, none of them in a row means anything.
        if num_in_a_row >= MAX_CONSECUTIVE_QUARANTINED and self._stage.max_quarantine < 1:
            last = bad[-1]
            raise TooManyBadError(
                f"step {account.step}: {num_in_a_row} records in a row could not be used; "
                f"the last, at {self._paths.get(last.file)} position {last.position}: {last.message}",
                help="mend the step or the recipe's field names; what was finished is kept",
            )

    def _quarantine_file(self) -> PendingFile:
        if self._quarantine is None:
            self._quarantine = self._open_file("quarantine")
        return self._quarantine

    def _open_file(self, kind: str) -> PendingFile:
        path = self._stage.root / f"{self._part.stem}.{kind}.jsonl"
        return self._files.enter_context(PendingFile(path, self._stage.run_id))

    def _commit_file(self, file: PendingFile | None) -> list[StoredFile]:
        if file is None:
            return []
        file.commit()
        path = file.path.relative_to(self._stage.root).as_posix()
        return [StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)]


def _input_size(source: Span | StoredRecords) -> int:
    return source.num_bytes if isinstance(source, Span) else source.num_rows * _BYTES_PER_ROW


def _add_amounts(account: Account, batch: pa.RecordBatch) -> None:
    """How much text or how many tokens are left: a difference of offsets."""
    if TEXT in batch.schema.names:
        account.text_bytes += count_values(batch.column(TEXT))
    elif INPUT_IDS in batch.schema.names:
        account.tokens += count_values(batch.column(INPUT_IDS))


def _check_unchanged(span: Span) -> None:
    file = span.file
    size, version = read_version(file.path)
    if (size, version) != (file.num_bytes, file.version):
        raise SourceChangedError(
            f"{file.path} has changed since the run was planned ({file.num_bytes} bytes then, {size} now)",
            help="run the same command again: it plans anew, and what has not changed is kept",
        )
