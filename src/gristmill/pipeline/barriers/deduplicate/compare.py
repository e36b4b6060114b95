"""Tasks that compare the sketches of candidates. Sketches reject most of them.

No sketch is looked up for a pair. The range of the first document has all of its pairs, each once by then, and carries
the first documents' sketches to the ranges of the second ones (116 bytes, once for each range). There they are read in
order, a piece at a time, beside the range's own. A range reads the sketches of its own units only, and these whole.

What is left is written twice: as pairs with their estimates, for the range; and as edges of the graph whose components
are clusters, for the ranges of both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    PAIR,
    SIMILAR,
    PartitionedFile,
    PartitionWriter,
    make_records,
    scatter_records,
    write_records,
)
from gristmill.shards.manifests.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.similarity import classify_pairs, compare_sketches
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext, PartitionTask
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 15


class ComparedPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs of a range that their sketches do not reject."""

    similar: StoredFile
    edges: PartitionedFile
    num_pairs: Count
    num_similar: Count

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.similar, self.edges.file]


def make_carried_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of documents whose sketches are carried, with sketches of this size."""
    return np.dtype([("document", "<i8"), ("sketch", "u1", (num_permutations,))])


class CarriedPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates whose first document is in a range, each once, scattered by the range of the second one."""

    pairs: PartitionedFile
    sketches: PartitionedFile
    """The sketches of first documents for other ranges, in order."""

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.pairs.file, self.sketches.file]


def run_carry(task: Task, context: Context) -> CarriedPairs:
    """Carry the sketches of a range to others; `context.state` is a `PartitionContext` with the candidates."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    documents, stem = stage.documents, stage.open_stem(payload)
    candidates = stage.gather("pairs", PAIR, payload.partition)
    pairs = Pairs.of(candidates["first"], candidates["second"])
    ranges = documents.find_ranges(pairs.second)
    start, stop = documents.range_starts[payload.partition : payload.partition + 2].tolist()
    is_apart = ranges != payload.partition
    # By range and document, each once.
    carried = np.unique(ranges[is_apart] * (stop - start) + pairs.first[is_apart] - start)
    carried_ranges, firsts = carried // (stop - start), carried % (stop - start) + start
    sketches = _read_sketches(documents, firsts)
    kind = make_carried_type(documents.num_permutations)
    with PartitionWriter(stem, ".carried", documents.num_ranges, notes_bounds=True) as writer:
        for number, first in enumerate(range(0, len(carried), _PAIRS_AT_ONCE)):
            context.at(number)
            chunk = slice(first, first + _PAIRS_AT_ONCE)
            records = make_records(kind, document=firsts[chunk], sketch=sketches.find(firsts[chunk]))
            writer.scatter(records, carried_ranges[chunk])
        carried_sketches = writer.close()
    context.count(records=len(pairs))
    records = make_records(PAIR, first=pairs.first, second=pairs.second)
    return CarriedPairs(
        pairs=scatter_records(stem, ".pairs", records, ranges, documents.num_ranges), sketches=carried_sketches
    )


def run_compare(task: Task, context: Context) -> ComparedPairs:
    """Compare the candidates of a range; `context.state` is a `PartitionContext` with pairs and carried sketches."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    documents, stem = stage.documents, stage.open_stem(payload)
    pairs = stage.gather("pairs", PAIR, payload.partition)
    pairs = pairs[np.argsort(pairs["first"], kind="stable")]
    own_start, own_stop = np.searchsorted(
        pairs["first"], documents.range_starts[payload.partition : payload.partition + 2]
    ).tolist()
    own_pairs = pairs[own_start:own_stop]
    own = _read_sketches(documents, np.concatenate([own_pairs["first"], pairs["second"]]))
    similar = [np.empty(0, SIMILAR), *_compare_pairs(stage.step, own_pairs, own, own, context)]
    kind = make_carried_type(documents.num_permutations)
    for carried_file in stage.inputs["carried"]:
        for carried in carried_file.read(stage.work, kind, payload.partition):
            # Documents are in order, and each is in one piece: the pairs of a piece are side by side.
            start = np.searchsorted(pairs["first"], carried["document"][0])
            stop = np.searchsorted(pairs["first"], carried["document"][-1], side="right")
            similar += _compare_pairs(
                stage.step, pairs[start:stop], _Sketches(carried["document"], carried["sketch"]), own, context
            )
    left = np.concatenate(similar)
    left = left[np.lexsort((left["first"], left["second"]))]
    return ComparedPairs(
        similar=write_records(stem, ".similar", left),
        edges=scatter_edges(stem, Pairs(left["first"], left["second"]), documents),
        num_pairs=len(pairs),
        num_similar=len(left),
    )


@dataclass(frozen=True, slots=True)
class _Sketches:
    """The sketches of some documents, in order."""

    documents: NDArray[np.int64]
    sketches: NDArray[np.uint8]

    def find(self, documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.sketches[np.searchsorted(self.documents, documents)]


def _read_sketches(documents: Documents, numbers: NDArray[np.int64]) -> _Sketches:
    """Read the sketches of documents of one range, each once."""
    needed = np.unique(numbers)
    return _Sketches(needed, documents.sketches(needed))


def _compare_pairs(
    step: Deduplicate, pairs: NDArray[Any], first: _Sketches, second: _Sketches, context: Context
) -> Iterator[NDArray[Any]]:
    """Compare pairs, some at a time; yield those that are not rejected."""
    for number, start in enumerate(range(0, len(pairs), _PAIRS_AT_ONCE)):
        context.at(number)
        chunk = pairs[start : start + _PAIRS_AT_ONCE]
        estimates = compare_sketches(step, first.find(chunk["first"]), second.find(chunk["second"]))
        classified = classify_pairs(step, estimates)
        compared = make_records(SIMILAR, first=chunk["first"], second=chunk["second"], estimate=estimates)
        yield compared[classified.alike | classified.undecided]
        context.count(records=len(chunk))


def scatter_edges(stem: OutputStem, edges: Pairs, documents: Documents) -> PartitionedFile:
    """Write edges for the ranges of both of their ends; once where that is the same range."""
    records = make_records(PAIR, first=edges.first, second=edges.second)
    first, second = documents.find_ranges(edges.first), documents.find_ranges(edges.second)
    apart = first != second
    both: NDArray[Any] = np.concatenate([records, records[apart]])
    return scatter_records(stem, ".edges", both, np.concatenate([second, first[apart]]), documents.num_ranges)
