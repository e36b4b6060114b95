"""What `deduplicate` removes, by ranges of documents, and the streams of the next stage without it.

Exact copies follow their survivor where that is removed itself. The lists are sorted, and in one file for each range,
of which a stream reads its own part: 45 bytes for each document that is removed. Documents are numbered over all
streams; a stream knows the number of its first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from gristmill.core.records import select_rows
from gristmill.pipeline.barriers.exchange import RecordWriting
from gristmill.pipeline.barriers.record_files import NUMBER, make_records
from gristmill.pipeline.stages.stored import WholeRecords
from gristmill.shards.stored_files import StoredRange
from gristmill.steps.deduplicate.deduplicate import with_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.shards.stored_files import StoredFile
    from gristmill.storage.locations import Location


ORIGIN_FIELDS = ("file", "position", "part")
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


def make_removals(removals: NDArray[Any]) -> dict[str, Any]:
    """Make what is scattered by the ranges of the documents that go, and of those that stay."""
    return {"removed": removals, "kept": make_records(NUMBER, document=removals["survivor"])}


REMOVAL_WRITES = {"removed": RecordWriting(REMOVAL, by=("document",)), "kept": RecordWriting(NUMBER, by=("document",))}


def redirect_copies(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Find the last survivors of exact copies, by the range of the document with the same text.

    If that is itself removed as a near copy of a third document, the third one is the survivor of both.
    """
    copies = partition["copies"]
    # Reference documents stay even where they are copies of each other.
    copies = copies[copies["second"] >= documents.num_reference]
    near = partition["near"]
    near = near[np.argsort(near["document"])]
    origins = documents.describe(copies["first"])
    removals = make_records(
        REMOVAL,
        document=copies["second"],
        survivor=copies["first"],
        similarity=np.ones(len(copies)),
        is_exact=np.ones(len(copies), dtype=bool),
        **{name: origins[name] for name in ORIGIN_FIELDS},
    )
    if len(near):
        indices = np.minimum(np.searchsorted(near["document"], copies["first"]), len(near) - 1)
        is_removed = near["document"][indices] == copies["first"]
        followed = near[indices[is_removed]]
        followed["document"] = copies["second"][is_removed]
        removals[is_removed] = followed
    return make_removals(removals)


def gather_removals(partition: Partition) -> dict[str, Any]:
    """Sort the removals of a range, and count how many documents those of the range stand for."""
    removals = partition["removals"]
    survivors, counts = np.unique(partition["survivors"]["document"], return_counts=True)
    return {
        "removals": removals[np.argsort(removals["document"])],
        "clusters": make_records(COUNT, document=survivors, count=counts + 1),
    }


def make_range(file: StoredFile, records: NDArray[Any], start: int, stop: int) -> StoredRange:
    """Describe consecutive records of a file that holds these records."""
    content = records[start:stop].view(np.uint8)
    checksum = xxhash.xxh3_64_intdigest(content.data)
    return StoredRange(file=file, start=start * records.itemsize, num_bytes=len(content), checksum=checksum)


@dataclass(frozen=True, slots=True)
class RemovalList:
    """The documents that are removed from one stream."""

    first_document: int
    """The number of the stream's first document."""
    removals: StoredRange
    counts: StoredRange | None
    """None: the recipe does not ask for them."""
    dropped: Mapping[str, int]
    """Number of removed documents by reason."""

    def load(self, root: Location) -> LoadedRemovals:
        """Read the list into memory."""
        removed = np.frombuffer(self.removals.read(root), REMOVAL)["document"] - self.first_document
        counts = None if self.counts is None else np.frombuffer(self.counts.read(root), COUNT).copy()
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
class StoredSurvivors(WholeRecords):
    """A stored stream without the documents that were removed from it."""

    stored: StoredInput
    removed: RemovalList

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    def count_dropped(self, num_records: int) -> Mapping[str, int]:  # noqa: ARG002
        """Give the number of removed documents by reason."""
        return self.removed.dropped

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the documents that stay."""
        removals = self.removed.load(root)
        start = 0
        for batch in self.stored.batches(root, seed):
            yield removals.apply(batch, start)
            start += batch.num_rows
