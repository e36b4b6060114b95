"""What a `deduplicate` removes from a stored stream, and how many documents each one that stays stands for.

Documents are numbered over all streams; a stream knows the number of its first one. The lists are sorted, and in one
file for each range of documents, of which a stream reads its own part: 45 bytes for each document that is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.core.records import select_rows
from gristmill.pipeline.stages.stored import SelectedRecords
from gristmill.steps.deduplicate.deduplicate import with_counts
from gristmill.storage.mapped_files import read_array
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.storage.locations import Location

REMOVAL = np.dtype(
    [
        ("document", "<i8"),
        ("survivor", "<i8"),
        ("similarity", "<f8"),
        ("is_exact", "?"),
        ("file", "<u8"),  # the origin of the survivor
        ("position", "<u8"),
        ("part", "<u4"),
    ]
)
COUNT = np.dtype([("document", "<i8"), ("count", "<i8")])


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Consecutive records of a file."""

    path: str
    start: int
    stop: int

    def read(self, root: Location, kind: np.dtype[Any]) -> NDArray[Any]:
        """Read these records of the file."""
        path = path_below(root, self.path)
        return read_array(path, kind, self.start * kind.itemsize, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class RemovalList:
    """The documents that are removed from one stream."""

    first_document: int
    """The number of the stream's first document."""
    removals: RecordRange
    counts: RecordRange | None
    """None: the recipe does not ask for them."""
    dropped: Mapping[str, int]
    """Number of removed documents by reason."""

    def load(self, root: Location) -> LoadedRemovals:
        """Read the list into memory."""
        removed = self.removals.read(root, REMOVAL)["document"] - self.first_document
        counts = None if self.counts is None else self.counts.read(root, COUNT)
        return LoadedRemovals(self.first_document, removed, counts)


@dataclass(frozen=True, slots=True)
class LoadedRemovals:
    """A removal list in memory."""

    first_document: int
    rows: NDArray[np.int64]
    counts: NDArray[Any] | None

    def apply(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Remove rows from a batch that begins with row `start` of the stream."""
        stop = start + batch.num_rows
        is_kept = np.ones(batch.num_rows, dtype=bool)
        is_kept[self.rows[slice(*np.searchsorted(self.rows, [start, stop]))] - start] = False
        survivors = select_rows(batch, is_kept)
        if self.counts is None:
            return survivors
        numbers = self.counts["document"] - self.first_document
        in_batch = slice(*np.searchsorted(numbers, [start, stop]))
        counts = np.ones(batch.num_rows, dtype=np.int64)
        counts[numbers[in_batch] - start] = self.counts["count"][in_batch]
        return with_counts(survivors, counts[is_kept])


@dataclass(frozen=True, slots=True)
class StoredSurvivors:
    """A stored stream without the documents that were removed from it."""

    stored: StoredInput
    removed: RemovalList

    is_copy: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, int]] = {}

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    def count_dropped(self, num_records: int) -> Mapping[str, int]:  # noqa: ARG002
        """Give the number of removed documents by reason."""
        return self.removed.dropped

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the documents that stay."""
        removals = self.removed.load(root)
        if isinstance(self.stored, SelectedRecords):
            yield from self.stored.read_selected(root, removals.apply)
            return
        start = 0
        for batch in self.stored.batches(root, seed):
            yield removals.apply(batch, start)
            start += batch.num_rows

    def written_batches(self, root: Location) -> Iterator[pa.RecordBatch] | None:
        """Read the documents that stay as they are written, if they are not stored."""
        if not isinstance(self.stored, SelectedRecords):
            return None
        return self.stored.read_selected(root, self.removed.load(root).apply, are_written=True)
