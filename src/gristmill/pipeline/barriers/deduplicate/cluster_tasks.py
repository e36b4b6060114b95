"""Stages that find clusters (the components of the graph of similar pairs) and choose which of their documents stay.

Linking goes in rounds. A task has the edges at the documents of some consecutive ranges. It joins them (union-find),
and replaces them by stars: each document with the smallest of its component, for the ranges of both ends. Components
that lie in several ranges grow together in the next rounds. If no task has changed anything, all edges are stars of
whole components: were a document b the smallest of one star and a member of another, a—b—c, its task would have
replaced b—c by a—c. As many ranges as have about 2^17 edges together are one task, so that small data needs one round
of one task.

Then all that is needed to decide about a cluster is scattered to one partition: similar pairs, and of each member its
rank, origin, sketch and set of shingles, from one pass over the texts. No text is ever read for a pair. The choice
itself has everything in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.pipeline.barriers.deduplicate.removals import ORIGIN_FIELDS, REMOVAL, make_removals
from gristmill.pipeline.barriers.record_files import PAIR, make_records
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.clusters import (
    Removals,
    SimilarityGraph,
    SimilarPairs,
    classify_pairs,
    compare_sketches,
    contract_edges,
    verify_removals,
)
from gristmill.text.minhash import ShingleSets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.steps.deduplicate.deduplicate import Deduplicate


BYTES_PER_EDGE = 256
"""What a task holds for an edge, with room for sorting."""
SHINGLE = np.dtype("<u8")


def link_edges(partition: Partition) -> dict[str, Any]:
    """Join the edges at some ranges of documents, and replace them by stars."""
    records = partition["edges"]
    stars, is_changed = contract_edges(Pairs.of(records["first"], records["second"]))
    partition.report(records=len(stars))
    edges = make_records(PAIR, first=stars.first, second=stars.second)
    return {"edges": edges, "num_edges": len(stars), "is_changed": is_changed}


def make_member_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of cluster members, with sketches of this size."""
    return np.dtype(
        [
            ("document", "<i8"),
            ("rank", "<u8"),
            ("file", "<u8"),
            ("position", "<u8"),
            ("part", "<u4"),
            ("num_shingles", "<i8"),
            ("sketch", "u1", (num_permutations,)),
        ]
    )


def needs_texts(step: Deduplicate) -> bool:
    """Tell whether pairs are accepted by their texts only."""
    return step.verify == "text" and step.kind != "image"


def scatter_members(step: Deduplicate, documents: Documents, partition: Partition) -> dict[str, Any]:
    """Deal the members of a range, their sets of shingles and its similar pairs by cluster."""
    members, labels = find_members(documents, partition)
    descriptions = documents.describe(members)
    records = make_records(
        make_member_type(documents.num_permutations),
        document=members,
        rank=documents.ranks(members),
        num_shingles=np.zeros(len(members), np.int64),
        sketch=documents.sketches(members),
        **{name: descriptions[name] for name in ("file", "position", "part")},
    )
    similar = partition["similar"]
    return {
        # First: reading the texts sets the size of each set.
        "shingles": _read_shingles(step, documents, members, labels, records["num_shingles"], partition),
        "members": (records, labels),
        "similar": (similar, labels[np.searchsorted(members, similar["second"])]),
    }


def find_members(documents: Documents, partition: Partition) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the documents of a range that are in clusters, sorted, and for each the smallest one of its cluster."""
    start, stop = documents.range_starts[partition.number : partition.number + 2].tolist()
    stars = partition["edges"]
    first, second = stars["first"], stars["second"]
    inside = (second >= start) & (second < stop)
    smallest = first[(first >= start) & (first < stop)]
    members, indices = np.unique(np.concatenate([second[inside], smallest]), return_index=True)
    return members, np.concatenate([first[inside], smallest])[indices]


def _read_shingles(
    step: Deduplicate,
    documents: Documents,
    members: NDArray[np.int64],
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    partition: Partition,
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]]:
    """Read the texts of members in one pass as sets; writes the size of each set to `sizes`."""
    first = 0
    for texts in documents.read_texts(members) if needs_texts(step) else ():
        partition.at(first)
        sets = ShingleSets.of(texts, step.ngram)
        stop = first + len(texts)
        sizes[first:stop] = sets.sizes
        if len(texts):
            # A copy: the memory in which sets are made has room for texts of the shortest words.
            yield sets.shingles.copy(), labels[first:stop], sets.sizes
        partition.report(records=len(texts))
        first = stop


def choose_removals(step: Deduplicate, documents: Documents, partition: Partition) -> dict[str, Any]:
    """Choose the documents of a partition of clusters that are similar to better ones that stay."""
    members = _Members(step, partition["members"], partition["shingles"])
    similar = partition["similar"]
    partition.report(records=len(similar))
    removals = members.choose_removals(similar, documents.num_reference)
    records = make_records(
        REMOVAL,
        document=removals.documents,
        survivor=removals.survivors,
        similarity=removals.similarities,
        is_exact=np.zeros(len(removals.documents), dtype=bool),
        **members.find_origins(removals.survivors),
    )
    return {**make_removals(records), "num_pairs": members.num_pairs, "num_by_text": members.num_by_text}


class _Members:
    """The members of some clusters."""

    def __init__(self, step: Deduplicate, records: NDArray[Any], shingles: NDArray[np.uint64]) -> None:
        self._step = step
        self._records = records
        sizes = np.ascontiguousarray(records["num_shingles"])  # kernels are compiled for such arrays
        self._sets = ShingleSets(shingles, np.cumsum(sizes) - sizes, sizes)
        self.num_pairs = self.num_by_text = 0

    def choose_removals(self, similar: NDArray[Any], num_reference: int) -> Removals:
        """Choose the documents that go."""
        alike = self._accept(Pairs(similar["first"].copy(), similar["second"].copy()), similar["estimate"].copy())
        # Two survivors that no band brought together may still be similar.
        missing = SimilarityGraph(alike.pairs, self._find_ranks).missing_pairs()
        self.num_pairs += len(missing)
        sketches = (self._find(side)["sketch"] for side in (missing.first, missing.second))
        more = self._accept(missing, compare_sketches(self._step, *sketches))
        alike = SimilarPairs.concatenate(alike, more)
        if not needs_texts(self._step):
            graph = SimilarityGraph(alike.pairs, self._find_ranks)
            return graph.removals(alike.similarities, num_reference)
        return verify_removals(alike, self._find_ranks, num_reference, self._step.threshold, self._compare_texts)

    def find_origins(self, documents: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Find the origins of members, field by field."""
        records = self._find(documents)
        return {name: records[name] for name in ORIGIN_FIELDS}

    def _accept(self, pairs: Pairs, estimates: NDArray[np.float64]) -> SimilarPairs:
        """Give the pairs that are alike by their sketches, or by their texts where sketches leave it open."""
        classified = classify_pairs(self._step, estimates)
        undecided = classified.undecided
        indices = np.flatnonzero(undecided)
        estimates[indices] = self._compare_texts(Pairs(pairs.first[indices], pairs.second[indices]))
        is_alike = classified.alike | (undecided & (estimates >= self._step.threshold))
        is_exact = np.ones(len(pairs), dtype=bool) if self._step.kind == "image" else undecided
        return SimilarPairs(pairs, estimates, is_exact).take(is_alike)

    def _compare_texts(self, pairs: Pairs) -> NDArray[np.float64]:
        self.num_by_text += len(pairs)
        return self._sets.compare(self._locate(pairs.first), self._locate(pairs.second))

    def _find_ranks(self, documents: NDArray[np.int64]) -> NDArray[np.uint64]:
        ranks: NDArray[np.uint64] = self._find(documents)["rank"]
        return ranks

    def _find(self, documents: NDArray[np.int64]) -> NDArray[Any]:
        return self._records[self._locate(documents)]

    def _locate(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._records["document"], documents)
