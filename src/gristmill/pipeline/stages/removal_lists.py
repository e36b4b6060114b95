"""What a `deduplicate` takes out of a stored part, and how many documents each that stays there stands for.

Documents are numbered over all parts; a part knows the number of its first one. The lists are sorted, one file for all
parts, and each reads its own piece: 25 bytes a document that goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.steps.deduplicate.deduplicate import with_counts
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

REMOVAL = np.dtype([("document", "<i8"), ("survivor", "<i8"), ("similarity", "<f8"), ("is_exact", "?")])
COUNT = np.dtype([("document", "<i8"), ("count", "<i8")])


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Some consecutive records of a file."""

    path: str
    start: int
    stop: int

    def read(self, root: Path, kind: np.dtype[Any]) -> NDArray[Any]:
        path = path_below(root, self.path)
        return np.fromfile(path, dtype=kind, count=self.stop - self.start, offset=self.start * kind.itemsize)


@dataclass(frozen=True, slots=True)
class RemovalList:
    """Of one part."""

    first_document: int
    removals: RecordRange
    counts: RecordRange | None
    """None: the recipe does not ask for them."""
    dropped: Mapping[str, int]
    num_clusters: int
    """Documents of this part that stand for others."""

    def load(self, root: Path) -> LoadedRemovals:
        removed = self.removals.read(root, REMOVAL)["document"] - self.first_document
        counts = None if self.counts is None else self.counts.read(root, COUNT)
        return LoadedRemovals(self.first_document, removed, counts)


@dataclass(frozen=True, slots=True)
class LoadedRemovals:
    """The same in memory."""

    first_document: int
    rows: NDArray[np.int64]
    counts: NDArray[Any] | None

    def apply(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """What stays of a batch that begins with row `start` of the part."""
        stop = start + batch.num_rows
        keep = np.ones(batch.num_rows, dtype=bool)
        keep[self.rows[slice(*np.searchsorted(self.rows, [start, stop]))] - start] = False
        kept = batch if keep.all() else batch.filter(pa.array(keep))
        if self.counts is None:
            return kept
        numbers = self.counts["document"] - self.first_document
        found = slice(*np.searchsorted(numbers, [start, stop]))
        counts = np.ones(batch.num_rows, dtype=np.int64)
        counts[numbers[found] - start] = self.counts["count"][found]
        return with_counts(kept, counts[keep])
