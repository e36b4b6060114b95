"""All documents of a barrier under one number each, and what is kept of them: origin, length, sketch, text.

Numbers go through the units in order: those of `against` first, then the sources by preference and name. So a
document's number orders it by source, file and place, whatever the tasks and workers; no other file can change who is
before whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT
from gristmill.pipeline.barriers.deduplicate.record_files import map_records
from gristmill.pipeline.stages.slice_task import StageContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.record_files import PartitionedFile
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

DOCUMENT = np.dtype(
    [
        ("file", "<u8"),
        ("position", "<u8"),
        ("part", "<u4"),
        ("num_bytes", "<u4"),
        ("num_shingles", "<u4"),
        ("sketch", "<i4"),  # its place in the unit's file of sketches; -1: it has none
    ]
)
_MAX_LENGTH = np.uint64((1 << 48) - 1)


@dataclass(frozen=True, slots=True)
class DocumentUnit:
    """The documents of one unit."""

    source: str
    num_rows: int
    documents: str
    """The file of `DOCUMENT` records."""
    sketches: str
    texts: tuple[StoredInput, ...]


@dataclass(frozen=True)
class Documents:
    """See the module."""

    root: Path
    units: tuple[DocumentUnit, ...]
    """None of them is empty."""
    starts: NDArray[np.int64]
    """The number of each unit's first document, and how many there are."""
    priorities: NDArray[np.uint64]
    """Of each unit; less is better."""
    num_reference: int
    """So many of the first documents always stay."""
    prefer_longest: bool
    num_permutations: int

    def __len__(self) -> int:
        return int(self.starts[-1])

    def find_units(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.starts, documents, side="right") - 1

    def ranks(self, documents: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The smallest stays; among equal ones the smallest number."""
        ranks: NDArray[np.uint64] = self.priorities[self.find_units(documents)] << np.uint64(48)
        if self.prefer_longest:
            ranks |= _MAX_LENGTH - self.describe(documents)["num_bytes"].astype(np.uint64)
        return ranks

    def describe(self, documents: NDArray[np.int64]) -> NDArray[Any]:
        """Their `DOCUMENT` records."""
        found = np.empty(len(documents), dtype=DOCUMENT)
        for unit, rows, places in self._by_unit(documents):
            found[places] = map_records(self.root, unit.documents, DOCUMENT)[rows]
        return found

    def sketches(self, documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Of documents that have one."""
        found = np.empty((len(documents), self.num_permutations), dtype=np.uint8)
        for unit, rows, places in self._by_unit(documents):
            kept = map_records(self.root, unit.documents, DOCUMENT)[rows]["sketch"]
            found[places] = map_records(self.root, unit.sketches, np.uint8, self.num_permutations)[kept]
        return found

    def texts(self, documents: NDArray[np.int64]) -> pa.Array:
        """Of documents in order of their numbers."""
        texts = [
            text for unit, rows, _ in self._by_unit(documents) for text in _read_texts(self.root, unit.texts, rows)
        ]
        return pa.concat_arrays(texts) if texts else pa.array([], pa.large_string())

    def _by_unit(
        self, documents: NDArray[np.int64]
    ) -> Iterator[tuple[DocumentUnit, NDArray[np.int64], NDArray[np.int64]]]:
        """For each unit that is touched the rows in it, ascending, and their places in `documents`."""
        order = np.argsort(documents, kind="stable")
        numbers = self.find_units(documents[order])
        touched, firsts = np.unique(numbers, return_index=True)
        for number, first, stop in zip(touched, firsts, np.append(firsts[1:], len(order)), strict=False):
            places = order[first:stop]
            yield self.units[number], documents[places] - self.starts[number], places


def _read_texts(root: Path, inputs: tuple[StoredInput, ...], rows: NDArray[np.int64]) -> Iterator[pa.Array]:
    """The texts of ascending rows of a unit; only what is asked for is read from the mapped files."""
    start = 0
    for stored in inputs:
        stop = start + stored.num_rows
        if ((rows >= start) & (rows < stop)).any():
            for batch in stored.batches(root):
                some = rows[(rows >= start) & (rows < start + batch.num_rows)] - start
                if len(some):
                    yield batch.column(TEXT).take(pa.array(some))
                start += batch.num_rows
        start = stop


@dataclass(frozen=True, slots=True)
class DedupContext(StageContext):
    """What the workers of each stage are told once."""

    step: Deduplicate
    documents: Documents | None = None
    """Once they are signed."""
    inputs: tuple[PartitionedFile, ...] = ()
    """What the stage before has dealt out: one a unit, or one a partition."""
    exact_copies_bitmap: str = ""
    """A file with a bit for each document that is a copy of another one."""

    @property
    def known(self) -> Documents:
        assert self.documents is not None
        return self.documents

    def read(self, kind: np.dtype[Any], partition: int, at: Callable[[int], object]) -> Iterator[tuple[int, Any]]:
        """The records of a partition, with the number of the input that each piece comes from."""
        for number, partitioned in enumerate(self.inputs):
            at(number)
            for found in partitioned.read(self.root, kind, partition):
                yield number, found
