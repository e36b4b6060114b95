"""Tasks that choose which documents of clusters stay, by partitions of clusters: everything is in memory there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.deal import SHINGLE, make_member_type, needs_texts
from gristmill.pipeline.barriers.deduplicate.record_files import SIMILAR, make_records
from gristmill.pipeline.barriers.deduplicate.removal_lists import REMOVAL
from gristmill.pipeline.barriers.deduplicate.removals import ORIGIN_FIELDS, ScatteredRemovals, scatter_removals
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.clusters import Removals, SimilarityGraph, verify_removals
from gristmill.steps.deduplicate.similarity import SimilarPairs, classify_pairs, compare_sketches
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.text.shingles import ShingleSets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext, PartitionTask
    from gristmill.shards.manifests.stored_files import StoredFile
    from gristmill.steps.deduplicate.deduplicate import Deduplicate


class ChosenRemovals(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of a partition of clusters that are similar to better ones that stay."""

    scattered: ScatteredRemovals
    num_pairs: Count
    num_by_text: Count

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return self.scattered.files()


def run_choose(task: Task, context: Context) -> ChosenRemovals:
    """Choose in a partition of clusters; `context.state` is a `PartitionContext` with what was dealt to it."""
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
