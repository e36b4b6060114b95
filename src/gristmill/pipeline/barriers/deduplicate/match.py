"""Tasks that find documents with equal digests, and pairs with a band in common, by partition.

These tasks know numbers of documents only. Whatever depends on more than that, the order within groups of more than
`ALL_PAIRS`, is left to others: ranges lend the sketches and ranks of the members, and each group is paired where these
come together. So nothing is looked up document by document.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    CROWDED,
    DIGEST,
    KEY,
    PAIR,
    PartitionedFile,
    make_records,
    read_records,
    scatter_records,
    write_records,
)
from gristmill.shards.manifests.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import (
    ALL_PAIRS,
    KeyGroups,
    find_candidate_pairs,
    group_by_key,
    mark_repeated,
)
from gristmill.steps.deduplicate.digests import find_copies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext, PartitionTask
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.steps.deduplicate.candidates import Pairs


class CopyPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The copies found in a partition of digests: pairs of the document that stays and its copy."""

    by_survivor: PartitionedFile
    """Scattered by the range of the document that stays."""
    by_copy: PartitionedFile
    """Scattered by the range of the copy."""

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.by_survivor.file, self.by_copy.file]


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


class HiddenDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """The exact copies among the documents of a range: one bit for each document, set for a copy."""

    bits: StoredFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.bits]


def run_hide(task: Task, context: Context) -> HiddenDocuments:
    """Note which documents of a range are exact copies; `context.state` is a `PartitionContext` with the copies."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    start, stop = stage.documents.range_starts[payload.partition : payload.partition + 2].tolist()
    is_copy = np.zeros(stop - start, dtype=bool)
    is_copy[stage.gather("copies", PAIR, payload.partition)["second"] - start] = True
    return HiddenDocuments(bits=write_records(stage.open_stem(payload), ".bits", np.packbits(is_copy)))


class CandidatePairs(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs found in a partition that share a band, scattered by the range of their first document."""

    pairs: PartitionedFile
    crowded: PartitionedFile
    """The members of groups too large to take all pairs of, with their keys, by the range of the member."""
    num_groups: int
    largest_group: int
    num_capped: int
    """Number of such groups."""

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.pairs.file, self.crowded.file]


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
    del keys, numbers  # these arrays are large: the pieces must not stay in memory beside the whole
    is_repeated = mark_repeated(all_keys)  # most are not, and need no further look
    all_keys, all_numbers = all_keys[is_repeated], all_numbers[is_repeated]
    is_original = _HiddenBits(stage).read(all_numbers) == 0
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


def make_lent_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of members of large groups, with sketches of this size."""
    fields = [("key", "<u8"), ("document", "<i8"), ("rank", "<u8"), ("sketch", "u1", (num_permutations,))]
    return np.dtype(fields)


class LentSketches(msgspec.Struct, frozen=True, kw_only=True):
    """The sketches and ranks of the documents of a range that are in large groups, scattered by group."""

    sketches: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.sketches.file]


def run_lend(task: Task, context: Context) -> LentSketches:
    """Lend what a range knows of members; `context.state` is a `PartitionContext` with the members of large groups."""
    stage: PartitionContext = context.state
    documents = stage.documents
    crowded = stage.gather("crowded", CROWDED, task.payload.partition)
    members, indices = np.unique(crowded["document"], return_inverse=True)
    lent = make_records(
        make_lent_type(documents.num_permutations),
        key=crowded["key"],
        document=crowded["document"],
        rank=documents.ranks(members)[indices],
        sketch=documents.sketches(members)[indices],
    )
    partitions = (crowded["key"] % np.uint64(stage.num_partitions)).astype(np.int64)
    stem = stage.open_stem(task.payload)
    return LentSketches(sketches=scatter_records(stem, ".lent", lent, partitions, stage.num_partitions))


class LikelyPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of large groups, scattered by the range of their first document."""

    pairs: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.pairs.file]


def run_likely(task: Task, context: Context) -> LikelyPairs:
    """Pair the members of large groups; `context.state` is a `PartitionContext` with what ranges have lent."""
    stage: PartitionContext = context.state
    documents = stage.documents
    lent = stage.gather("lent", make_lent_type(documents.num_permutations), task.payload.partition)
    context.count(records=len(lent))
    members, firsts = np.unique(lent["document"], return_index=True)

    def find(numbers: NDArray[np.int64], name: str) -> NDArray[Any]:
        return lent[name][firsts[np.searchsorted(members, numbers)]]

    groups = group_by_key(lent["key"], lent["document"], lambda numbers: find(numbers, "rank"))
    pairs = find_candidate_pairs(groups, lambda numbers: find(numbers, "sketch"), documents.num_reference)
    return LikelyPairs(pairs=_scatter_pairs(stage.open_stem(task.payload), pairs, documents))


class _HiddenBits:
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
            self._bits = read_records(work, self._stage.files["hidden"][number], np.dtype(np.uint8))
        indices = documents - numbered.range_starts[number]
        # `numpy.packbits` puts the first bit into the highest of a byte.
        bits: NDArray[np.uint8] = self._bits[indices >> 3] >> (7 - (indices & 7)).astype(np.uint8) & np.uint8(1)
        return bits
