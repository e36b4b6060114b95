"""All documents at a barrier under one number each, and what is stored of them: origin, length, sketch, text.

Numbers go through the streams of all units in order: reference documents first, then the sources by preference and
name. So the number of a document orders it by source, file and position, regardless of tasks and workers, and no other
file can change which of two documents comes first. Stages work through ranges of these numbers, or through partitions
of hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import list_stored_inputs
from gristmill.pipeline.barriers.record_files import map_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stage_context import StageContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.stages.outputs.split_files import Annotation
    from gristmill.pipeline.stages.stage_context import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.stored_files import StoredFile
    from gristmill.steps.deduplicate.deduplicate import Deduplicate
    from gristmill.storage.locations import Location


DOCUMENT = np.dtype(
    [
        ("file", "<u8"),
        ("position", "<u8"),
        ("part", "<u4"),
        ("num_bytes", "<u4"),
        ("num_shingles", "<u4"),
        ("sketch", "<i4"),  # its row in the unit's file of sketches; -1: it has none
    ]
)
_MAX_LENGTH = np.uint64((1 << 48) - 1)
_BYTES_PER_DOCUMENT = 256
"""What tasks hold at most for each document of a range."""
_MAX_RANGES = 256
"""Each task of one kind leaves a piece for each range: with more of them, pieces would be too small to read."""


@dataclass(frozen=True, slots=True)
class DocumentUnit:
    """The documents of one stream, and the files with what is known of them."""

    source: str
    num_rows: int
    documents: StoredFile
    """The file of `DOCUMENT` records."""
    sketches: StoredFile
    """The file of sketches."""
    texts: StoredInput


@dataclass(frozen=True)
class Documents:
    """The numbered documents of all units. Methods take arrays of numbers, and give one entry for each of them."""

    root: Location
    units: tuple[DocumentUnit, ...]
    """All units in the order of their documents; none is empty."""
    starts: NDArray[np.int64]
    """The number of each unit's first document, then the number of all documents."""
    priorities: NDArray[np.uint64]
    """The priority of each unit's documents; lower is better."""
    range_starts: NDArray[np.int64]
    """The number of the first document of each range, then the number of all documents. A range holds whole units."""
    num_reference: int
    """How many of the first documents always stay."""
    prefer_longest: bool
    num_permutations: int

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def num_ranges(self) -> int:
        return len(self.range_starts) - 1

    def find_ranges(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the number of each document's range."""
        return np.searchsorted(self.range_starts, documents, side="right") - 1

    def find_units(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the number of each document's unit."""
        return np.searchsorted(self.starts, documents, side="right") - 1

    def ranks(self, documents: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Rank documents: of similar ones the lowest rank stays, among equal ranks the lowest number."""
        ranks = self.rank_equal_texts(documents)
        if self.prefer_longest:
            ranks |= _MAX_LENGTH - self.describe(documents)["num_bytes"].astype(np.uint64)
        return ranks

    def rank_equal_texts(self, documents: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Rank documents that are of one length, about which nothing has to be read."""
        # Priority in the high 16 bits; below it, `ranks` has smaller numbers for longer documents.
        ranks: NDArray[np.uint64] = self.priorities[self.find_units(documents)] << np.uint64(48)
        return ranks

    def describe(self, documents: NDArray[np.int64]) -> NDArray[Any]:
        """Read the `DOCUMENT` records of documents."""
        descriptions = np.empty(len(documents), dtype=DOCUMENT)
        for unit, rows, indices in self._group_by_unit(documents):
            descriptions[indices] = map_records(self.root, unit.documents, DOCUMENT)[rows]
        return descriptions

    def sketches(self, documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read the sketches of documents that have one."""
        sketches = np.empty((len(documents), self.num_permutations), dtype=np.uint8)
        for unit, rows, indices in self._group_by_unit(documents):
            sketch_rows = map_records(self.root, unit.documents, DOCUMENT)[rows]["sketch"]
            sketch = np.dtype((np.uint8, self.num_permutations))
            sketches[indices] = map_records(self.root, unit.sketches, sketch)[sketch_rows]
        return sketches

    def texts(self, documents: NDArray[np.int64]) -> pa.Array:
        """Read the texts of documents, which are given in ascending order."""
        texts = list(self.read_texts(documents))
        return pa.concat_arrays(texts) if texts else pa.array([], pa.large_string())

    def read_texts(self, documents: NDArray[np.int64]) -> Iterator[pa.Array]:
        """Read the texts of documents, which are given in ascending order, in one pass over their streams."""
        for unit, rows, _ in self._group_by_unit(documents):
            yield from unit.texts.read_texts(self.root, rows)

    def _group_by_unit(
        self, documents: NDArray[np.int64]
    ) -> Iterator[tuple[DocumentUnit, NDArray[np.int64], NDArray[np.int64]]]:
        """Group documents by unit: the unit, their rows in it (ascending), and their indices in `documents`."""
        order = np.argsort(documents, kind="stable")
        unit_numbers = self.find_units(documents[order])
        numbers, firsts = np.unique(unit_numbers, return_index=True)
        for number, first, stop in zip(numbers, firsts, np.append(firsts[1:], len(order)), strict=False):
            indices = order[first:stop]
            yield self.units[number], documents[indices] - self.starts[number], indices


@dataclass(frozen=True, slots=True)
class BarrierUnit:
    """A stream of a unit at the barrier: what one of its slices has left of one split."""

    unit: StageUnit
    stream: StoredInput
    annotation: Annotation | None
    """What the stage has noted of the documents."""
    is_against: bool = False
    """The documents come from the files of `against`."""
    is_held_out: bool = False
    """The documents belong to another split than training."""
    num_bytes: int = 0
    """The size of the stream; 0: not known."""

    @property
    def is_reference(self) -> bool:
        """Whether its documents always stay."""
        return self.is_against or self.is_held_out

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all streams of the unit that are held out, or that are not."""
        name = self.unit.fingerprint
        return fingerprint.of(name, "held out") if self.is_held_out else name

    @property
    def num_rows(self) -> int:
        return self.stream.num_rows


def collect_barrier_units(
    unit_results: Iterable[tuple[StageUnit, SliceResult]], *, is_against: bool = False
) -> Iterator[BarrierUnit]:
    """Collect the streams that have documents, of each unit held-out ones first."""
    for unit, result in unit_results:
        parts = zip(list_stored_inputs(result), result.split_files, strict=True)
        for stream, file in sorted(parts, key=lambda part: part[0].split == TRAIN):
            if stream.num_rows:
                is_held_out = stream.split != TRAIN
                yield BarrierUnit(unit, stream, file.annotation, is_against, is_held_out, file.data.bytes)


def cut_ranges(units: Sequence[BarrierUnit], partition_bytes: int) -> NDArray[np.int64]:
    """Cut the documents into ranges of whole units; return the first document of each, and the number of all."""
    num_documents = sum(unit.num_rows for unit in units)
    size = max(partition_bytes // _BYTES_PER_DOCUMENT, -(-num_documents // _MAX_RANGES))
    starts, next_start = [0], 0
    for _, streams in groupby(units, key=lambda unit: unit.fingerprint):
        next_start += sum(stream.num_rows for stream in streams)
        if next_start - starts[-1] >= size:
            starts.append(next_start)
    if starts[-1] != next_start:
        starts.append(next_start)
    return np.array(starts, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignContext(StageContext):
    """The context of tasks that sign units: nothing is known of the documents yet."""

    step: Deduplicate
