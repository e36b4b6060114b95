"""Whether two documents are similar: their sketches can reject a pair, only their texts can confirm it.

An estimate from n values has a standard deviation of sqrt(t(1-t)/n) at the threshold t: 0.038 for 108 values at 0.8.
A sketch rejects a pair three deviations below the threshold; of pairs just at the threshold it loses about one in 700.
An estimate above the threshold proves nothing, because the errors of documents made from one template are correlated:
if the template's words happen to agree for one page, they do for all of them.

If the estimate is near the threshold, the texts are compared immediately. A pair far above it is only a candidate until
a removal depends on it (`clusters.verify_removals`): in a cluster of a thousand documents with some eleven such pairs
each, one text comparison a document is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.images.perceptual import HASH_BITS, measure_similarities
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.text.shingles import estimate_similarities

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.steps.deduplicate.deduplicate import Deduplicate


@dataclass(frozen=True, slots=True)
class ClassifiedPairs:
    """Pairs classified by their sketches; pairs that are in neither class are rejected."""

    alike: NDArray[np.bool_]
    """Pairs that are accepted; with `verify: text` a removal that depends on one is verified first."""
    undecided: NDArray[np.bool_]
    """Pairs whose texts are compared immediately."""


def compare_sketches(step: Deduplicate, first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Compare pairs of sketches: of images exactly, of texts by an estimate."""
    return measure_similarities(first, second) if step.kind == "image" else estimate_similarities(first, second)


def classify_pairs(step: Deduplicate, estimates: NDArray[np.float64]) -> ClassifiedPairs:
    """Classify pairs by their estimated similarities."""
    if step.kind == "image":  # the whole hashes are compared, so there is nothing left to verify
        return ClassifiedPairs(estimates >= 1 - step.max_distance / HASH_BITS, np.zeros(len(estimates), dtype=bool))
    if step.verify == "signature":
        return ClassifiedPairs(estimates >= step.threshold, np.zeros(len(estimates), dtype=bool))
    margin = max(3 * math.sqrt(step.threshold * (1 - step.threshold) / (step.bands * step.rows)), 0.05)
    alike = estimates >= step.threshold + margin
    return ClassifiedPairs(alike, ~alike & (estimates > step.threshold - margin))


@dataclass(frozen=True, slots=True)
class SimilarPairs:
    """Pairs that are similar, by their texts or by an estimate."""

    pairs: Pairs
    similarities: NDArray[np.float64]
    is_exact: NDArray[np.bool_]
    """Whether the similarity is that of the texts, not an estimate."""

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, indexes: NDArray[np.int64] | NDArray[np.bool_]) -> SimilarPairs:
        pairs = Pairs(self.pairs.first[indexes], self.pairs.second[indexes])
        return SimilarPairs(pairs, self.similarities[indexes], self.is_exact[indexes])

    @staticmethod
    def concatenate(left: SimilarPairs, right: SimilarPairs) -> SimilarPairs:
        first = np.concatenate([left.pairs.first, right.pairs.first])
        second = np.concatenate([left.pairs.second, right.pairs.second])
        similarities = np.concatenate([left.similarities, right.similarities])
        return SimilarPairs(Pairs(first, second), similarities, np.concatenate([left.is_exact, right.is_exact]))
