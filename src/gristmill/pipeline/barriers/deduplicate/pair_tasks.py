"""Tasks that find documents with equal digests, and pairs of similar ones: from a band in common to equal sketches.

Partitions of digests and of band keys know only numbers of documents. The order within groups of more than `ALL_PAIRS`
depends on more than that: ranges send the sketches and ranks of the members, and each group is paired where these come
together. So nothing is looked up document by document.

No sketch is looked up for a pair either. The range of the first document has all of its pairs, each once by then, and
sends the first documents' sketches to the ranges of the second ones (116 bytes, once for each range). There they are
read in order, a piece at a time, alongside the range's own sketches, which are read whole. What sketches do not reject
is written twice: as pairs with their estimates, for the range; and as edges of the graph whose components are clusters,
for the ranges of both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    CROWDED,
    DIGEST,
    KEY,
    PAIR,
    SIMILAR,
    PartitionedFile,
    PartitionWriter,
    TaskFiles,
    make_records,
    read_records,
    scatter_records,
    write_records,
)
from gristmill.shards.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import (
    ALL_PAIRS,
    KeyGroups,
    Pairs,
    find_candidate_pairs,
    group_by_key,
    mark_repeated,
)
from gristmill.steps.deduplicate.clusters import classify_pairs, compare_sketches, find_copies
from gristmill.storage.locations import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.documents import Documents, PartitionContext, PartitionTask
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 15


class CopyPairs(TaskFiles, frozen=True, kw_only=True):
    """The copies found in a partition of digests: pairs of the document that stays and its copy."""

    by_survivor: PartitionedFile
    """Scattered by the range of the document that stays."""
    by_copy: PartitionedFile
    """Scattered by the range of the copy."""


def run_copies(task: Task, context: Context) -> CopyPairs:
    """Find documents with equal texts; `context.state` is a `PartitionContext` with the digests of each stream."""
    stage: PartitionContext = context.state
    documents, payload = stage.documents, task.payload
    digests, numbers = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
    for start, records in stage.read("digests", DIGEST, payload.partition, context.at):
        digests.append(np.stack([records["high"], records["low"]], axis=1))
        numbers.append(start + records["row"])
    copies = find_copies(np.concatenate(digests), np.concatenate(numbers), documents.rank_equal_texts)
    pairs = make_records(PAIR, first=copies.survivors, second=copies.documents)
    stem, num_ranges = stage.open_stem(payload), documents.num_ranges
    return CopyPairs(
        by_survivor=scatter_records(stem, ".survivors", pairs, documents.find_ranges(pairs["first"]), num_ranges),
        by_copy=scatter_records(stem, ".copies", pairs, documents.find_ranges(pairs["second"]), num_ranges),
    )


class MarkedCopies(TaskFiles, frozen=True, kw_only=True):
    """The exact copies among the documents of a range: one bit for each document, set for a copy."""

    bits: StoredFile


def mark_copies(task: Task, context: Context) -> MarkedCopies:
    """Note which documents of a range are exact copies; `context.state` is a `PartitionContext` with the copies."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    start, stop = stage.documents.range_starts[payload.partition : payload.partition + 2].tolist()
    is_copy = np.zeros(stop - start, dtype=bool)
    is_copy[stage.gather("copies", PAIR, payload.partition)["second"] - start] = True
    return MarkedCopies(bits=write_records(stage.open_stem(payload), ".bits", np.packbits(is_copy)))


class CandidatePairs(TaskFiles, frozen=True, kw_only=True):
    """The pairs found in a partition that share a band, scattered by the range of their first document."""

    pairs: PartitionedFile
    crowded: PartitionedFile
    """The members of groups too large to take all pairs of, with their keys, by the range of the member."""
    num_groups: int
    largest_group: int
    num_capped: int
    """Number of such groups."""


def run_candidates(task: Task, context: Context) -> CandidatePairs:
    """Find pairs that share a band; `context.state` is a `PartitionContext` with the band keys of each stream."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    documents, stem = stage.documents, stage.open_stem(payload)
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for start, records in stage.read("keys", KEY, payload.partition, context.at):
        keys.append(records["key"].copy())
        numbers.append(start + records["row"])
    all_keys, all_numbers = np.concatenate(keys), np.concatenate(numbers)
    del keys, numbers  # these arrays are large: the pieces must not stay in memory next to the whole
    is_repeated = mark_repeated(all_keys)  # most are not, and need no further look
    all_keys, all_numbers = all_keys[is_repeated], all_numbers[is_repeated]
    is_original = _CopyBits(stage).read(all_numbers) == 0
    groups = group_by_key(all_keys[is_original], all_numbers[is_original])
    sizes = np.diff(groups.starts)
    is_crowded = np.repeat(sizes > ALL_PAIRS, sizes)
    crowded = make_records(CROWDED, key=groups.keys[is_crowded], document=groups.documents[is_crowded])
    starts = np.append(0, np.cumsum(sizes[sizes <= ALL_PAIRS]))
    small = KeyGroups(groups.documents[~is_crowded], starts, groups.keys[~is_crowded])
    ranges = documents.find_ranges(crowded["document"])
    return CandidatePairs(
        pairs=_scatter_pairs(stem, find_candidate_pairs(small), documents),
        crowded=scatter_records(stem, ".crowded", crowded, ranges, documents.num_ranges),
        num_groups=len(sizes),
        largest_group=int(sizes.max(initial=0)),
        num_capped=int(np.count_nonzero(sizes > ALL_PAIRS)),
    )


def _scatter_pairs(stem: OutputStem, pairs: Pairs, documents: Documents) -> PartitionedFile:
    """Write pairs of which one may be removed, by the range of their first document."""
    is_removable = pairs.second >= documents.num_reference  # of two reference documents neither is removed
    records = make_records(PAIR, first=pairs.first[is_removable], second=pairs.second[is_removable])
    return scatter_records(stem, ".pairs", records, documents.find_ranges(records["first"]), documents.num_ranges)


def make_sent_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of members of large groups, with sketches of this size."""
    fields = [("key", "<u8"), ("document", "<i8"), ("rank", "<u8"), ("sketch", "u1", (num_permutations,))]
    return np.dtype(fields)


class SketchesByGroup(TaskFiles, frozen=True, kw_only=True):
    """The sketches and ranks of the documents of a range that are in large groups, scattered by group."""

    sketches: PartitionedFile


def send_sketches(task: Task, context: Context) -> SketchesByGroup:
    """Lend what a range knows of members; `context.state` is a `PartitionContext` with the members of large groups."""
    stage: PartitionContext = context.state
    documents = stage.documents
    crowded = stage.gather("crowded", CROWDED, task.payload.partition)
    members, indices = np.unique(crowded["document"], return_inverse=True)
    sent = make_records(
        make_sent_type(documents.num_permutations),
        key=crowded["key"],
        document=crowded["document"],
        rank=documents.ranks(members)[indices],
        sketch=documents.sketches(members)[indices],
    )
    partitions = (crowded["key"] % np.uint64(stage.num_partitions)).astype(np.int64)
    stem = stage.open_stem(task.payload)
    return SketchesByGroup(sketches=scatter_records(stem, ".sent", sent, partitions, stage.num_partitions))


class LikelyPairs(TaskFiles, frozen=True, kw_only=True):
    """Pairs of large groups, scattered by the range of their first document."""

    pairs: PartitionedFile


def run_likely(task: Task, context: Context) -> LikelyPairs:
    """Pair the members of large groups; `context.state` is a `PartitionContext` with what ranges have sent."""
    stage: PartitionContext = context.state
    documents = stage.documents
    sent = stage.gather("sent", make_sent_type(documents.num_permutations), task.payload.partition)
    context.count(records=len(sent))
    members, firsts = np.unique(sent["document"], return_index=True)

    def find(numbers: NDArray[np.int64], name: str) -> NDArray[Any]:
        return sent[name][firsts[np.searchsorted(members, numbers)]]

    groups = group_by_key(sent["key"], sent["document"], lambda numbers: find(numbers, "rank"))
    pairs = find_candidate_pairs(groups, lambda numbers: find(numbers, "sketch"), documents.num_reference)
    return LikelyPairs(pairs=_scatter_pairs(stage.open_stem(task.payload), pairs, documents))


class _CopyBits:
    """The bits of the range that was asked for last; streams are read in the order of their documents."""

    def __init__(self, stage: PartitionContext) -> None:
        self._stage = stage
        self._range = -1
        self._bits: NDArray[np.uint8] = np.empty(0, np.uint8)

    def read(self, documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read the bits of documents of one stream, or of several in order; a stream is in one range."""
        if not len(documents):
            return np.empty(0, np.uint8)
        first, last = self._stage.documents.find_ranges(documents[[0, -1]]).tolist()
        if first == last:
            return self._read_in_range(first, documents)
        ranges = np.searchsorted(self._stage.documents.find_ranges(documents), np.arange(first, last + 2))
        pieces = [
            self._read_in_range(number, documents[start:stop])
            for number, (start, stop) in enumerate(pairwise(ranges.tolist()), first)
            if stop > start
        ]
        return np.concatenate(pieces)

    def _read_in_range(self, number: int, documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        numbered, work = self._stage.documents, self._stage.work
        if number != self._range:
            self._range = number
            self._bits = read_records(work, self._stage.files["copy_bits"][number], np.dtype(np.uint8))
        indices = documents - numbered.range_starts[number]
        # `numpy.packbits` puts the first bit into the highest of a byte.
        bits: NDArray[np.uint8] = self._bits[indices >> 3] >> (7 - (indices & 7)).astype(np.uint8) & np.uint8(1)
        return bits


class ComparedPairs(TaskFiles, frozen=True, kw_only=True):
    """The pairs of a range that their sketches do not reject."""

    similar: StoredFile
    edges: PartitionedFile
    num_pairs: Count
    num_similar: Count


def make_carried_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of documents whose sketches are carried, with sketches of this size."""
    return np.dtype([("document", "<i8"), ("sketch", "u1", (num_permutations,))])


class CarriedPairs(TaskFiles, frozen=True, kw_only=True):
    """The candidates whose first document is in a range, each once, scattered by the range of the second one."""

    pairs: PartitionedFile
    sketches: PartitionedFile
    """The sketches of first documents for other ranges, in order."""


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
