"""Tasks that find clusters (the components of the graph of similar pairs) and choose which of their documents stay.

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

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.pipeline.barriers.deduplicate.documents import PartitionContext
from gristmill.pipeline.barriers.deduplicate.pair_tasks import scatter_edges
from gristmill.pipeline.barriers.deduplicate.record_files import (
    PAIR,
    SIMILAR,
    PartitionedFile,
    RunWriter,
    TaskFiles,
    make_records,
    read_records,
    scatter_records,
)
from gristmill.pipeline.barriers.deduplicate.removals import ORIGIN_FIELDS, REMOVAL, ScatteredRemovals, scatter_removals
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
from gristmill.storage.locations import Count  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.text.minhash import ShingleSets

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.documents import PartitionTask
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.steps.deduplicate.deduplicate import Deduplicate


_BYTES_PER_EDGE = 256
"""What a task holds for an edge, with room for sorting."""
SHINGLE = np.dtype("<u8")


class LinkedDocuments(TaskFiles, frozen=True, kw_only=True):
    """The stars that a task has made of the edges at the documents of its ranges."""

    edges: PartitionedFile
    num_edges: Count
    is_changed: bool


def run_link(task: Task, context: Context) -> LinkedDocuments:
    """Join the edges at some ranges of documents; `context.state` is a `PartitionContext` with the edges."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    records = stage.gather("edges", PAIR, payload.partition, payload.num_partitions)
    stars, is_changed = contract_edges(Pairs.of(records["first"], records["second"]))
    context.count(records=len(stars))
    edges = scatter_edges(stage.open_stem(payload), stars, stage.documents)
    return LinkedDocuments(edges=edges, num_edges=len(stars), is_changed=is_changed)


def link_documents(
    edges: tuple[PartitionedFile, ...],
    num_edges: int,
    context: PartitionContext,
    run_round: Callable[[PartitionContext, int, int], list[LinkedDocuments]],
) -> list[LinkedDocuments]:
    """Run rounds until nothing changes, or one task has seen all edges.

    `run_round` is called with the context, the number of the round and the number of its tasks.
    """
    for number in count(1):
        num_bytes = num_edges * _BYTES_PER_EDGE
        num_tasks = max(1, min(context.documents.num_ranges, -(-num_bytes // context.step.partition_bytes)))
        linked = run_round(PartitionContext.extend(context, inputs={"edges": edges}), number, num_tasks)
        if num_tasks == 1 or not any(result.is_changed for result in linked):
            return linked
        edges, num_edges = tuple(result.edges for result in linked), sum(result.num_edges for result in linked)
    raise AssertionError


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


class ScatteredMembers(TaskFiles, frozen=True, kw_only=True):
    """The documents of a range that are in clusters, and its similar pairs, scattered by cluster."""

    members: PartitionedFile
    shingles: PartitionedFile
    similar: PartitionedFile


def scatter_members(task: Task, context: Context) -> ScatteredMembers:
    """Deal a range; `context.state` is a `PartitionContext` with the stars, and each range's file of similar pairs."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    documents, stem = stage.documents, stage.open_stem(payload)
    members, labels = _find_members(stage, payload.partition)
    partitions = labels % stage.num_partitions
    descriptions = documents.describe(members)
    records = make_records(
        make_member_type(documents.num_permutations),
        document=members,
        rank=documents.ranks(members),
        num_shingles=np.zeros(len(members), np.int64),
        sketch=documents.sketches(members),
        **{name: descriptions[name] for name in ("file", "position", "part")},
    )
    shingles = _scatter_shingles(stage, stem, members, partitions, records["num_shingles"], context)
    similar = read_records(stage.work, stage.files["similar"][payload.partition], SIMILAR)
    similar_partitions = partitions[np.searchsorted(members, similar["second"])]
    return ScatteredMembers(
        members=scatter_records(stem, ".members", records, partitions, stage.num_partitions),
        shingles=shingles,
        similar=scatter_records(stem, ".pairs", similar, similar_partitions, stage.num_partitions),
    )


def _find_members(stage: PartitionContext, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the documents of a range that are in clusters, sorted, and for each the smallest one of its cluster."""
    start, stop = stage.documents.range_starts[number : number + 2].tolist()
    stars = stage.gather("edges", PAIR, number)
    first, second = stars["first"], stars["second"]
    inside = (second >= start) & (second < stop)
    smallest = first[(first >= start) & (first < stop)]
    members, indices = np.unique(np.concatenate([second[inside], smallest]), return_index=True)
    return members, np.concatenate([first[inside], smallest])[indices]


def _scatter_shingles(
    stage: PartitionContext,
    stem: OutputStem,
    members: NDArray[np.int64],
    partitions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    context: Context,
) -> PartitionedFile:
    """Read the texts of members in one pass and scatter their sets; writes the size of each set to `sizes`."""
    block_bytes = {} if stage.block_bytes is None else {"block_bytes": stage.block_bytes}
    with RunWriter(stem, ".shingles", stage.num_partitions, notes_bounds=True, **block_bytes) as writer:
        first = 0
        for texts in stage.documents.read_texts(members) if needs_texts(stage.step) else ():
            context.at(first)
            sets = ShingleSets.of(texts, stage.step.ngram)
            stop = first + len(texts)
            sizes[first:stop] = sets.sizes
            if len(texts):
                # A copy: the memory in which sets are made has room for texts of the shortest words.
                writer.scatter_runs(sets.shingles.copy(), partitions[first:stop], sets.sizes)
            context.count(records=len(texts))
            first = stop
        return writer.close()


class ChosenRemovals(TaskFiles, frozen=True, kw_only=True):
    """The documents of a partition of clusters that are similar to better ones that stay."""

    scattered: ScatteredRemovals
    num_pairs: Count
    num_by_text: Count


def run_choose(task: Task, context: Context) -> ChosenRemovals:
    """Choose in a partition of clusters; `context.state` is a `PartitionContext` with what was scattered to it."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    kind = make_member_type(stage.documents.num_permutations)
    members = _Members(
        stage.step,
        stage.gather("members", kind, payload.partition),
        stage.gather("shingles", SHINGLE, payload.partition),
    )
    similar = stage.gather("similar", SIMILAR, payload.partition)
    context.count(records=len(similar))
    removals = members.choose_removals(similar, stage.documents.num_reference)
    records = make_records(
        REMOVAL,
        document=removals.documents,
        survivor=removals.survivors,
        similarity=removals.similarities,
        is_exact=np.zeros(len(removals.documents), dtype=bool),
        **members.find_origins(removals.survivors),
    )
    return ChosenRemovals(
        scattered=scatter_removals(stage.open_stem(payload), records, stage.documents),
        num_pairs=members.num_pairs,
        num_by_text=members.num_by_text,
    )


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
