"""The tasks of `deduplicate` for pieces of documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.seeds import find_ranges
from gristmill.pipeline.barriers.deduplicate.record_files import (
    PartitionedFile,
    PartitionWriter,
    RecordWriter,
    make_records,
)
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext
from gristmill.shards.manifests.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.pieces import COLUMN, PIECE, hash_pieces
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.deduplicate.deduplicate import DeduplicatePieces

_MAX_NOTED_PARTITIONS = 256
"""Up to this number receipts say where partitions begin. Files with more are merged before partitions are read."""
REMOVED = np.dtype([("row", "<u4"), ("number", "<u4")])
"""A piece that is removed: the row of its document in the unit, and its number in the text."""


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


@dataclass(frozen=True, slots=True)
class NumberedTask:
    """A task for one partition, or for one unit."""

    number: int
    stem: str


class HashedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces of a unit, by partition."""

    pieces: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.pieces.file]


class CopiedPieces(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces of one partition that have come before, by unit."""

    removed: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.removed.file]


class UnitRemovals(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces that are removed from a unit, by row and number."""

    removed: StoredFile
    num_pieces: Count

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.removed]


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
        for records in file.read(stage.work, PIECE, task.payload.number):
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
        arrays += file.read(stage.work, REMOVED, task.payload.number)
    removed = np.concatenate(arrays)
    removed.sort(order=["row", "number"])
    with RecordWriter(open_stem(stage.work, task.payload.stem, stage.run_id), ".removed") as writer:
        writer.add(removed)
        return UnitRemovals(removed=writer.commit(), num_pieces=len(removed))
