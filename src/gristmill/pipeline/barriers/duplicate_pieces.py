"""The barrier of `deduplicate` for pieces of documents: lines, paragraphs, runs of words and values of a column.

Tasks hash the pieces of each unit, find in each partition of hashes those that have come before, and gather by unit
what is removed. The next stage removes it as it reads the documents. A worker holds one unit or one partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.errors import TooManyDuplicatesError
from gristmill.core.records import TEXT, select_rows
from gristmill.core.seeds import find_ranges
from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, pair_with_notes, replace_texts
from gristmill.pipeline.barriers.exchange import Exchange, Part, RecordWriting
from gristmill.pipeline.barriers.record_files import make_records, read_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stored import WholeRecords
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.steps.deduplicate.deduplicate import DUPLICATE
from gristmill.steps.deduplicate.partitions import grow_partition_bytes
from gristmill.steps.deduplicate.pieces import COLUMN, PIECE, SUBSTRING, hash_pieces, remove_pieces
from gristmill.storage.locations import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.pipeline.barriers.record_files import Receipt
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.shards.stored_files import StoredFile
    from gristmill.steps.deduplicate.deduplicate import DeduplicatePieces
    from gristmill.storage.locations import Location

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
        for piece_unit, receipt in zip(units, removals, strict=True):
            source, removed, num_pieces = piece_unit.unit.source, receipt.whole["removed"], receipt.counts["num_pieces"]
            inputs, first_row = [], 0
            for stored in piece_unit.inputs:
                inputs.append(WithoutPieces(stored, self.step, removed, num_pieces, first_row))
                first_row += stored.num_rows
            name = fingerprint.of(piece_unit.fingerprint, "pieces", removed.xxh3)
            next_units.setdefault(source.name, []).append(StageUnit(source, name, tuple(inputs)))
        if self.step.preserves_documents:
            self._check_limits(units, removals)
        return BarrierOutcome(units=next_units, entry_account=self.step.name)

    def _make_sort_key(self, unit: _PieceUnit) -> tuple[bool, int, str]:
        name, prefer = unit.unit.source.name, self.step.prefer
        return not unit.is_reference, prefer.index(name) if name in prefer else len(prefer), name

    def _find_removals(self, units: Sequence[_PieceUnit], run: BarrierRun) -> Sequence[Receipt]:
        """Hash the pieces of all units, find the copies in each partition, and gather them by unit."""
        if not units:
            return []
        step, layout = self.step, run.plan.layout
        num_bytes = sum(unit.num_bytes for unit in units) // _BYTES_PER_PIECE.get(step.kind, 40) * PIECE.itemsize
        size = step.partition_bytes
        if is_remote(run.context.work):  # on a store partitions are larger, and so are fewer
            size = grow_partition_bytes(num_bytes, size, piece_bytes=layout.min_piece_bytes)
        num_partitions = max(1, num_bytes // size)
        described = [step.kind, step.min_words, step.by, num_partitions]
        parts = [
            (fingerprint.of(unit.fingerprint, "pieces", described), Part(number, inputs=unit.inputs))
            for number, unit in enumerate(units)
        ]
        all_units = fingerprint.of([name for name, _ in parts])
        exchange = Exchange(run, "deduplicate", all_units, partition_bytes=step.partition_bytes)
        notes_bounds = num_partitions <= _MAX_NOTED_PARTITIONS
        hashed = exchange.run(
            partial(hash_unit, step, num_partitions),
            parts,
            "hashing",
            writes={"pieces": RecordWriting(PIECE, num_partitions=num_partitions, notes_bounds=notes_bounds)},
        ).scattered("pieces")
        unit_starts = np.cumsum([0, *(unit.num_rows for unit in units)])[:-1]
        merged = exchange.merge("pieces", hashed.files, PIECE, unit_starts, num_partitions)
        copies = exchange.run(
            partial(find_copies, unit_starts, sum(unit.is_reference for unit in units)),
            merged.num_partitions or 1,
            "copies",
            reads={"pieces": merged},
            writes={"copies": RecordWriting(REMOVED, num_partitions=len(units))},
        )
        reads = {"copies": copies.scattered("copies")}
        writes = {"removed": RecordWriting(REMOVED)}
        return exchange.run(gather_unit, len(units), "removals", reads=reads, writes=writes).receipts

    def _check_limits(self, units: Sequence[_PieceUnit], removals: Sequence[Receipt]) -> None:
        """Raise `TooManyDuplicatesError` if a source would lose too many documents."""
        totals: dict[str, list[int]] = {}
        for unit, removed in zip(units, removals, strict=True):
            total = totals.setdefault(unit.unit.source.name, [0, 0])
            total[0] += unit.num_rows
            total[1] += removed.counts["num_pieces"]
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


@dataclass(frozen=True, slots=True)
class WithoutPieces(WholeRecords):
    """A stored stream without the pieces that have come before."""

    stored: StoredInput
    step: DeduplicatePieces
    removed: StoredFile
    """The pieces that are removed from the whole unit."""
    num_pieces: int
    first_row: int
    """The number of the stream's first document in the unit."""

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


def hash_unit(step: DeduplicatePieces, num_partitions: int, partition: Partition) -> dict[str, Any]:
    """Hash the pieces of a unit."""

    def hash_batches() -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        for first_row, batch in partition.batches():
            values = batch.column(step.by)
            if step.kind == COLUMN:
                values = values.cast(pa.large_string())
            pieces = hash_pieces(values, step.kind, step.min_words)
            pieces["row"] += np.uint32(first_row)
            yield pieces, find_ranges(pieces["high"], num_partitions)

    return {"pieces": hash_batches()}


def find_copies(unit_starts: NDArray[np.int64], num_reference: int, partition: Partition) -> dict[str, Any]:
    """Find all pieces of a partition that have come before, in the order of units, rows and numbers.

    Documents of the first `num_reference` units always stay.
    """
    arrays, numbers = [np.empty(0, PIECE)], [np.empty(0, np.int64)]
    for start, records in partition.pieces("pieces"):
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
    units = np.searchsorted(unit_starts, documents[copies], side="right") - 1
    copies, units = copies[units >= num_reference], units[units >= num_reference]
    removed = make_records(REMOVED, row=documents[copies] - unit_starts[units], number=pieces["number"][copies])
    return {"copies": (removed, units)}


def gather_unit(partition: Partition) -> dict[str, Any]:
    """Gather what is removed from one unit."""
    removed = partition["copies"]
    removed.sort(order=["row", "number"])
    return {"removed": removed, "num_pieces": len(removed)}
