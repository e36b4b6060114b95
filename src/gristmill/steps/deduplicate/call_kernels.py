"""One call of every compiled function of deduplication, so that a run compiles them before its workers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.steps.deduplicate.candidates import find_candidate_pairs, group_by_key, mark_repeated
from gristmill.steps.deduplicate.clusters import SimilarityGraph
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.deduplicate.large_groups import pair_likely_members
from gristmill.steps.deduplicate.partitions import call_place
from gristmill.text.shingles import ShingleSets

if TYPE_CHECKING:
    from numpy.typing import NDArray


def call_kernels() -> None:
    """Deduplicate a copy, a near copy and other texts."""
    step = Deduplicate()  # the defaults: with a step's own parameters short texts may reach no kernel
    words = [f"word{number}" for number in range(60)]
    lines = [" ".join(words), " ".join([*words[:-1], "other"]), " ".join(reversed(words)), " ".join(words)]
    texts = pa.array(lines, pa.large_string())
    signed = step.minhash.sign(texts)
    ShingleSets.of(texts, step.ngram).compare(np.array([0]), np.array([1]))
    mark_repeated(signed.keys.reshape(-1))
    groups = group_by_key(signed.keys.reshape(-1), np.repeat(signed.rows, step.bands), _give_equal_ranks)
    pairs = find_candidate_pairs(groups, signed.sketches.__getitem__)
    list(pair_likely_members(signed.rows, signed.sketches.__getitem__, 0))
    call_place()
    graph = SimilarityGraph(pairs, _give_equal_ranks)
    graph.missing_pairs()
    graph.removals(np.ones(len(pairs)), 0)


def _give_equal_ranks(documents: NDArray[np.int64]) -> NDArray[np.uint64]:
    return np.zeros(len(documents), np.uint64)
