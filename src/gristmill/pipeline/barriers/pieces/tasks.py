"""The tasks of `deduplicate` for pieces of documents."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.seeds import find_ranges
from gristmill.pipeline.barriers.deduplicate.record_files import PartitionedFile, PartitionWriter, RecordWriter
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext
from gristmill.shards.manifests.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.pieces import COLUMN, PIECE, hash_pieces
from gristmill.storage.mapped_files import read_array
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.deduplicate.deduplicate import DeduplicatePieces
    from gristmill.storage.locations import Location

REMOVED = np.dtype([("row", "<u4"), ("number", "<u4")])
"""A piece that is removed: the row of its document in the unit, and its number in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceContext(StageContext):
    """The context of all three kinds of tasks."""

    step: DeduplicatePieces
    num_partitions: int
    num_reference: int = 0
    """The number of units whose documents always stay; they come first."""
    num_units: int = 0
    inputs: tuple[PartitionedFile, ...] = ()
    """What the tasks before have scattered: one file for each unit, or for each partition."""

    @classmethod
    def extend(cls, context: StageContext, **fields: Any) -> PieceContext:
        """Make the context from that of the stage, or of an earlier kind of task, and what is known since."""
        names = {each.name for each in dataclasses.fields(cls)} & {each.name for each in dataclasses.fields(context)}
        return cls(**{name: getattr(context, name) for name in names} | fields)


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
    with PartitionWriter(stem, ".pieces", stage.num_partitions) as writer:
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
    arrays, units = [np.empty(0, PIECE)], [np.empty(0, np.int64)]
    for unit, file in enumerate(stage.inputs):
        context.at(unit)
        for records in _read_partition(stage.work, file, PIECE, task.payload.number):
            arrays.append(records)
            units.append(np.full(len(records), unit, np.int64))
    pieces, unit_of = np.concatenate(arrays), np.concatenate(units)
    del arrays, units
    # Files and their records are in order, so a stable sort by hash leaves the first of equal pieces in front.
    order = np.lexsort((pieces["low"], pieces["high"]))
    high, low = pieces["high"][order], pieces["low"][order]
    is_copy = np.zeros(len(order), np.bool_)
    is_copy[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    copies = np.sort(order[is_copy])
    copies = copies[unit_of[copies] >= stage.num_reference]
    removed = np.empty(len(copies), REMOVED)
    removed["row"], removed["number"] = pieces["row"][copies], pieces["number"][copies]
    stem = open_stem(stage.work, task.payload.stem, stage.run_id)
    with PartitionWriter(stem, ".copies", stage.num_units) as writer:
        writer.scatter(removed, unit_of[copies])
        return CopiedPieces(removed=writer.close())


def run_gather(task: Task, context: Context) -> UnitRemovals:
    """Gather what is removed from one unit."""
    stage: PieceContext = context.state
    arrays = [np.empty(0, REMOVED)]
    for number, file in enumerate(stage.inputs):
        context.at(number)
        arrays += _read_partition(stage.work, file, REMOVED, task.payload.number)
    removed = np.concatenate(arrays)
    removed.sort(order=["row", "number"])
    with RecordWriter(open_stem(stage.work, task.payload.stem, stage.run_id), ".removed") as writer:
        writer.add(removed)
        return UnitRemovals(removed=writer.commit(), num_pieces=len(removed))


def _read_partition(
    root: Location, partitioned: PartitionedFile, kind: np.dtype[Any], partition: int
) -> Iterator[NDArray[Any]]:
    """Read the records of one partition, block by block."""
    if not partitioned.num_records:
        return
    path = partitioned.file.below(root)
    bounds = read_array(path, np.int64, partitioned.num_records * kind.itemsize)
    for block in bounds.reshape(-1, partitioned.num_partitions + 1):
        start, stop = int(block[partition]), int(block[partition + 1])
        if stop > start:
            yield read_array(path, kind, start * kind.itemsize, stop - start)
