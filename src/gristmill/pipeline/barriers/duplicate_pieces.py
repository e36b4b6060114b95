"""The barrier of `deduplicate` for pieces of documents: lines, paragraphs, runs of words and values of a column.

Tasks hash the pieces of each unit, find in each partition of hashes those that have come before, and gather by unit
what is removed. The next stage removes it as it reads the documents. A worker holds one unit or one partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from gristmill.core.errors import TooManyDuplicatesError
from gristmill.core.records import TEXT, select_rows
from gristmill.core.seeds import find_ranges
from gristmill.core.splits import TRAIN
from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, pair_with_notes, replace_texts
from gristmill.pipeline.barriers.deduplicate.documents import PartitionTask
from gristmill.pipeline.barriers.deduplicate.merge import PieceMerger
from gristmill.pipeline.barriers.deduplicate.record_files import (
    PartitionedFile,
    PartitionWriter,
    RecordWriter,
    TaskFiles,
    make_records,
    read_records,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.pipeline.work_folder import stored_path
from gristmill.shards.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.deduplicate import DUPLICATE
from gristmill.steps.deduplicate.partitions import grow_partition_bytes
from gristmill.steps.deduplicate.pieces import COLUMN, PIECE, SUBSTRING, hash_pieces, remove_pieces
from gristmill.storage.locations import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import msgspec
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.deduplicate.deduplicate import DeduplicatePieces
    from gristmill.storage.locations import Location

    T = TypeVar("T", bound=msgspec.Struct)

_BYTES_PER_PIECE = {SUBSTRING: 6}
"""About how many bytes of text make a piece; of lines and paragraphs more."""
_MIN_REMOVED = 10
_MAX_NOTED_PARTITIONS = 256
"""Up to this number receipts say where partitions begin. Files with more are merged before partitions are read."""
REMOVED = np.dtype([("row", "<u4"), ("number", "<u4")])
"""A piece that is removed: the row of its document in the unit, and its number in the text."""


@dataclass(frozen=True, slots=True)
class _PieceUnit:
    """The training streams of a unit, or its held-out ones."""

    unit: StageUnit
    inputs: tuple[StoredInput, ...]
    num_bytes: int
    is_reference: bool

    @property
    def num_rows(self) -> int:
        return sum(stored.num_rows for stored in self.inputs)

    @property
    def fingerprint(self) -> str:
        return fingerprint.of(self.unit.fingerprint, "held out") if self.is_reference else self.unit.fingerprint


@dataclass(frozen=True, slots=True)
class PiecesBarrier:
    """Removes pieces of documents that have come before, over all sources that come to one step."""

    step: DeduplicatePieces

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        units = sorted(
            (unit for source in sources for unit in _list_units(source)), key=self._make_sort_key
        )  # stable: units of a source stay in order
        removals = self._find_removals(units, run)
        next_units: dict[str, list[StageUnit]] = {}
        for piece_unit, removed in zip(units, removals, strict=True):
            source = piece_unit.unit.source
            inputs, first_row = [], 0
            for stored in piece_unit.inputs:
                inputs.append(WithoutPieces(stored, self.step, removed.removed, removed.num_pieces, first_row))
                first_row += stored.num_rows
            name = fingerprint.of(piece_unit.fingerprint, "pieces", removed.removed.xxh3)
            next_units.setdefault(source.name, []).append(StageUnit(source, name, tuple(inputs)))
        if self.step.preserves_documents:
            self._check_limits(units, removals)
        return BarrierOutcome(units=next_units, entry_account=self.step.name)

    def _make_sort_key(self, unit: _PieceUnit) -> tuple[bool, int, str]:
        name, prefer = unit.unit.source.name, self.step.prefer
        return not unit.is_reference, prefer.index(name) if name in prefer else len(prefer), name

    def _find_removals(self, units: Sequence[_PieceUnit], run: BarrierRun) -> list[UnitRemovals]:
        """Hash the pieces of all units, find the copies in each partition, and gather them by unit."""
        if not units:
            return []
        num_pieces = sum(unit.num_bytes for unit in units) // _BYTES_PER_PIECE.get(self.step.kind, 40)
        run_tasks = partial(self._run_tasks, run)
        num_partitions = self._count_partitions(num_pieces * PIECE.itemsize, run.context)
        context = PieceContext.extend(run.context, step=self.step, num_partitions=num_partitions)
        described = [self.step.kind, self.step.min_words, self.step.by, num_partitions]
        tasks = []
        for unit in units:
            name = fingerprint.of(unit.fingerprint, "pieces", described)
            tasks.append(Task(name, HashTask(unit.inputs, stored_path(name))))
        hashed = run_tasks(run_hash, context, tasks, HashedUnit, "hashing")
        all_units = fingerprint.of([task.id for task in tasks])
        merger = PieceMerger(run.context, all_units, self.step.partition_bytes, run_tasks)
        unit_starts = np.cumsum([0, *(unit.num_rows for unit in units)])[:-1]
        merged = merger.merge("pieces", [unit.pieces for unit in hashed], PIECE, unit_starts, num_partitions)
        context = PieceContext.extend(
            context,
            inputs=merged.files,
            input_starts=merged.starts,
            unit_starts=unit_starts,
            num_reference=sum(unit.is_reference for unit in units),
        )
        tasks = _number_tasks(merged.num_partitions, all_units, "copies")
        copies = run_tasks(run_copies, context, tasks, CopiedPieces, "copies")
        context = PieceContext.extend(context, inputs=merger.join("copies", (each.removed for each in copies), REMOVED))
        tasks = _number_tasks(len(units), all_units, "gather")
        return run_tasks(run_gather, context, tasks, UnitRemovals, "removals")

    def _count_partitions(self, num_bytes: int, context: StageContext) -> int:
        """Count the partitions of pieces that have this many bytes; on a store they are larger, and so are fewer."""
        size = self.step.partition_bytes
        if not isinstance(context.work, Path):
            size = grow_partition_bytes(num_bytes, size, piece_bytes=context.layout.min_piece_bytes)
        return max(1, num_bytes // size)

    def _run_tasks(
        self,
        run: BarrierRun,
        function: Callable[..., T],
        context: StageContext,
        tasks: Sequence[Task],
        kind: type[T],
        desc: str,
    ) -> list[T]:
        return run.runner.run_missing(
            function, context, tasks, kind, f"deduplicate: {desc}", in_process=len(tasks) == 1
        )

    def _check_limits(self, units: Sequence[_PieceUnit], removals: Sequence[UnitRemovals]) -> None:
        """Raise `TooManyDuplicatesError` if a source would lose too many documents."""
        totals: dict[str, list[int]] = {}
        for unit, removed in zip(units, removals, strict=True):
            total = totals.setdefault(unit.unit.source.name, [0, 0])
            total[0] += unit.num_rows
            total[1] += removed.num_pieces
        for source, (num_documents, num_removed) in totals.items():
            if num_removed > max(_MIN_REMOVED, self.step.max_source_loss * num_documents):
                raise TooManyDuplicatesError(
                    f"deduplicate: source {source} would lose {num_removed:,} of {num_documents:,} documents with an "
                    f"equal {self.step.by}; allowed are {self.step.max_source_loss:.0%}",
                    help="clean the source before this step, or raise max_source_loss; finished work is kept",
                )


def _list_units(source: BarrierSource) -> Iterator[_PieceUnit]:
    """List the units that have documents; one with held-out documents too is two."""
    for unit, result in source.unit_results():
        pairs = list(zip(list_stored_inputs(result), result.split_files, strict=True))
        for is_reference in (True, False):
            chosen = [(stored, file) for stored, file in pairs if (stored.split != TRAIN) == is_reference]
            if chosen:
                inputs = tuple(stored for stored, _ in chosen)
                yield _PieceUnit(unit, inputs, sum(file.data.bytes for _, file in chosen), is_reference)


def _number_tasks(count: int, all_units: str, kind: str) -> list[Task]:
    names = [fingerprint.of(all_units, kind, number, count) for number in range(count)]
    return [Task(name, PartitionTask(number, stored_path(name))) for number, name in enumerate(names)]


@dataclass(frozen=True, slots=True)
class WithoutPieces:
    """A stored stream without the pieces that have come before."""

    stored: StoredInput
    step: DeduplicatePieces
    removed: StoredFile
    """The pieces that are removed from the whole unit."""
    num_pieces: int
    first_row: int
    """The number of the stream's first document in the unit."""

    is_copy: ClassVar[bool] = False

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    @property
    def counters(self) -> Mapping[str, int]:
        """The number of pieces that were removed from the unit, with its first stream."""
        is_counted = self.num_pieces and not self.first_row and not self.step.preserves_documents
        return {f"removed_{self.step.kind}": self.num_pieces} if is_counted else {}

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count the documents of which nothing is left."""
        return {DUPLICATE: self.num_rows - num_records} if num_records < self.num_rows else {}

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the documents, without what is removed from them."""
        for batch, numbers in self._find_pieces(root, seed):
            yield replace_texts(self.step.name, batch, *self._edit(batch, numbers)) if numbers else batch

    def dropped_batches(self, root: Location, seed: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the documents of which nothing is left as they were, with their reason."""
        for batch, numbers in self._find_pieces(root, seed):
            if numbers:
                _, is_kept = self._edit(batch, numbers)
                yield DUPLICATE, select_rows(batch, ~is_kept)

    def _find_pieces(self, root: Location, seed: int) -> Iterator[tuple[pa.RecordBatch, dict[int, list[int]]]]:
        """Read all documents, with the numbers of the pieces that are removed from each row."""
        removed = read_records(root, self.removed, REMOVED)
        for batch, in_batch in pair_with_notes(self.stored.batches(root, seed), removed, self.first_row):
            numbers: dict[int, list[int]] = {}
            for row, number in in_batch.tolist():
                numbers.setdefault(row, []).append(number)
            yield batch, numbers

    def _edit(
        self, batch: pa.RecordBatch, numbers: Mapping[int, list[int]]
    ) -> tuple[dict[int, str], NDArray[np.bool_]]:
        """Make the new texts, and tell which documents are kept."""
        is_kept = np.ones(batch.num_rows, np.bool_)
        if self.step.preserves_documents:
            is_kept[list(numbers)] = False
            return {}, is_kept
        texts = {}
        for row, row_numbers in numbers.items():
            text = batch.column(TEXT)[row].as_py()
            texts[row] = remove_pieces(text, self.step.kind, row_numbers, self.step.min_words)
            is_kept[row] = bool(texts[row].strip())
        return texts, is_kept


def _make_no_starts() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceContext(StageContext):
    """The context of all three kinds of tasks."""

    step: DeduplicatePieces
    num_partitions: int
    num_reference: int = 0
    """The number of units whose documents always stay; they come first."""
    unit_starts: NDArray[np.int64] = field(default_factory=_make_no_starts)
    """The number of each unit's first document."""
    inputs: tuple[PartitionedFile, ...] = ()
    """What the tasks before have scattered: a file for each unit or partition, or what was merged of several."""
    input_starts: NDArray[np.int64] = field(default_factory=_make_no_starts)
    """Of pieces: the number of the document that has the first row of each input."""


@dataclass(frozen=True, slots=True)
class HashTask:
    """A task that hashes the pieces of one unit."""

    inputs: tuple[StoredInput, ...]
    stem: str


class HashedUnit(TaskFiles, frozen=True, kw_only=True):
    """The pieces of a unit, by partition."""

    pieces: PartitionedFile


class CopiedPieces(TaskFiles, frozen=True, kw_only=True):
    """The pieces of one partition that have come before, by unit."""

    removed: PartitionedFile


class UnitRemovals(TaskFiles, frozen=True, kw_only=True):
    """The pieces that are removed from a unit, by row and number."""

    removed: StoredFile
    num_pieces: Count


def run_hash(task: Task, context: Context) -> HashedUnit:
    """Hash the pieces of a unit; `context.state` is the `PieceContext`."""
    stage: PieceContext = context.state
    step = stage.step
    stem = open_stem(stage.work, task.payload.stem, stage.run_id)
    notes_bounds = stage.num_partitions <= _MAX_NOTED_PARTITIONS
    with PartitionWriter(stem, ".pieces", stage.num_partitions, notes_bounds=notes_bounds) as writer:
        first_row = 0
        for stored in task.payload.inputs:
            for number, batch in enumerate(stored.batches(stage.work)):
                context.at(number)
                context.count(records=batch.num_rows, bytes=batch.nbytes)
                values = batch.column(step.by)
                if step.kind == COLUMN:
                    values = values.cast(pa.large_string())
                pieces = hash_pieces(values, step.kind, step.min_words)
                pieces["row"] += np.uint32(first_row)
                writer.scatter(pieces, find_ranges(pieces["high"], stage.num_partitions))
                first_row += batch.num_rows
        return HashedUnit(pieces=writer.close())


def run_copies(task: Task, context: Context) -> CopiedPieces:
    """Find all pieces of a partition that have come before, in the order of units, rows and numbers."""
    stage: PieceContext = context.state
    arrays, numbers = [np.empty(0, PIECE)], [np.empty(0, np.int64)]
    for number, (file, start) in enumerate(zip(stage.inputs, stage.input_starts.tolist(), strict=True)):
        context.at(number)
        for records in file.read(stage.work, PIECE, task.payload.partition):
            arrays.append(records)
            numbers.append(start + records["row"].astype(np.int64))
    pieces, documents = np.concatenate(arrays), np.concatenate(numbers)
    del arrays, numbers
    # Files and their records are in order, so a stable sort by hash leaves the first of equal pieces in front.
    order = np.lexsort((pieces["low"], pieces["high"]))
    high, low = pieces["high"][order], pieces["low"][order]
    is_copy = np.zeros(len(order), np.bool_)
    is_copy[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    copies = np.sort(order[is_copy])
    units = np.searchsorted(stage.unit_starts, documents[copies], side="right") - 1
    copies, units = copies[units >= stage.num_reference], units[units >= stage.num_reference]
    removed = make_records(REMOVED, row=documents[copies] - stage.unit_starts[units], number=pieces["number"][copies])
    stem = open_stem(stage.work, task.payload.stem, stage.run_id)
    with PartitionWriter(stem, ".copies", len(stage.unit_starts)) as writer:
        writer.scatter(removed, units)
        return CopiedPieces(removed=writer.close())


def run_gather(task: Task, context: Context) -> UnitRemovals:
    """Gather what is removed from one unit."""
    stage: PieceContext = context.state
    arrays = [np.empty(0, REMOVED)]
    for number, file in enumerate(stage.inputs):
        context.at(number)
        arrays += file.read(stage.work, REMOVED, task.payload.partition)
    removed = np.concatenate(arrays)
    removed.sort(order=["row", "number"])
    with RecordWriter(open_stem(stage.work, task.payload.stem, stage.run_id), ".removed") as writer:
        writer.add(removed)
        return UnitRemovals(removed=writer.commit(), num_pieces=len(removed))
