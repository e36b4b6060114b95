"""From signatures to survivors: which pairs are similar, and which document of a cluster stays.

In the order of ranks, a document is removed if it is similar to a better one that survives. So every removed document
is similar to its own survivor, and no chain of similarities removes a dissimilar document. If bands have not paired a
document with the best of its cluster, that pair is compared as well (`missing_pairs`): the root of a component is its
smallest rank, in any order of joining pairs. Linear in the number of pairs.

Exact copies are documents whose texts have the same digest of 128 bits. The texts themselves are not compared: among a
billion documents, two different texts share a digest with a probability of about 10^-21.

A signature is a MinHash of a text or a perceptual hash of an image. Sketches of two documents can reject the pair, only
their texts can confirm it. An estimate from n values has a standard deviation of sqrt(t(1-t)/n) at the threshold t:
0.038 for 108 values at 0.8. A sketch rejects a pair three deviations below the threshold; of pairs just at the
threshold it loses about one in 700. An estimate above the threshold proves nothing, because the errors of documents
made from one template are correlated: if the template's words happen to agree for one page, they do for all of them.

If the estimate is near the threshold, the texts are compared immediately. A pair far above it is only a candidate until
a removal depends on it (`verify_removals`): in a cluster of a thousand documents with some eleven such pairs each, one
text comparison a document is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.media import list_image_columns
from gristmill.core.records import TEXT
from gristmill.images.codec import HASH_BITS, make_band_keys, measure_similarities, sign_images
from gristmill.runtime.kernels import kernel
from gristmill.steps.deduplicate.candidates import (
    Pairs,
    find_candidate_pairs,
    group_by_digest,
    group_by_key,
    mark_repeated,
    pair_likely_members,
)
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.deduplicate.partitions import call_place
from gristmill.text.buffers import get_text_buffers
from gristmill.text.minhash import ShingleSets, SignedTexts, estimate_similarities

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.steps.deduplicate.candidates import Ranks


if TYPE_CHECKING:
    CompareTexts = Callable[[Pairs], NDArray[np.float64]]
    """A function that returns the exact similarities of pairs."""

_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Removals:
    """Removed documents, sorted, each with its survivor."""

    documents: NDArray[np.int64]
    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]


def contract_edges(edges: Pairs) -> tuple[Pairs, bool]:
    """Replace edges by stars: each document with the smallest one of its component. Also tell whether any is new.

    >>> stars, is_changed = contract_edges(Pairs.of(np.array([3, 1, 7]), np.array([4, 3, 8])))
    >>> stars.first.tolist(), stars.second.tolist(), is_changed
    ([1, 1, 7], [3, 4, 8], True)
    """
    documents, ends = np.unique(np.concatenate([edges.first, edges.second]), return_inverse=True)
    roots = np.arange(len(documents))
    join_components(ends[: len(edges)], ends[len(edges) :], roots)
    others = np.flatnonzero(roots != np.arange(len(roots)))
    stars = Pairs.of(documents[roots[others]], documents[others])
    is_same = np.array_equal(stars.first, edges.first) and np.array_equal(stars.second, edges.second)
    return stars, not is_same


class SimilarityGraph:
    """Similar pairs, as a graph of documents that are numbered from the best on."""

    def __init__(self, pairs: Pairs, ranks: Ranks) -> None:
        documents, ends = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
        order = np.lexsort((documents, ranks(documents)))
        self.documents: NDArray[np.int64] = documents[order]
        positions = np.empty(len(order), dtype=np.int64)
        positions[order] = np.arange(len(order))
        left, right = positions[ends[: len(pairs)]], positions[ends[len(pairs) :]]
        self.better, self.worse = np.minimum(left, right), np.maximum(left, right)

    def roots(self) -> NDArray[np.int64]:
        """Return for each document the best one of its component."""
        roots = np.arange(len(self.documents))
        join_components(self.better, self.worse, roots)
        return roots

    def missing_pairs(self) -> Pairs:
        """Return pairs of a document and the best of its component that have not been compared."""
        roots = self.roots()
        is_paired = roots == np.arange(len(roots))
        is_paired[self.worse[self.better == roots[self.worse]]] = True
        unpaired = np.flatnonzero(~is_paired)
        return Pairs.of(self.documents[roots[unpaired]], self.documents[unpaired])

    def choose_pairs(self, num_reference: int) -> NDArray[np.int64]:
        """Return the pair of each removed document with its survivor; reference documents are never removed."""
        order = np.lexsort((self.better, self.worse))
        chosen = np.full(len(self.documents), -1, dtype=np.int64)
        _choose_survivors(self.better[order], self.worse[order], self.documents < num_reference, chosen)
        return order[chosen[chosen >= 0]]

    def removals(self, similarities: NDArray[np.float64], num_reference: int) -> Removals:
        """Return the removed documents; `similarities` are those of the pairs."""
        pairs = self.choose_pairs(num_reference)
        documents, survivors = self.documents[self.worse[pairs]], self.documents[self.better[pairs]]
        order = np.argsort(documents)
        return Removals(documents[order], survivors[order], similarities[pairs][order])


def verify_removals(
    alike: SimilarPairs, ranks: Ranks, num_reference: int, threshold: float, compare_texts: CompareTexts
) -> Removals:
    """Return the removed documents, with each pair of a removed document and its survivor verified by `compare_texts`.

    Pairs that fail are discarded, and survivors are chosen again. The result is the same as if the texts of all pairs
    were compared: it depends only on verified pairs, and the others could at most have removed more. After
    `_MAX_ROUNDS` all remaining pairs of a component are compared in one go, so that no data needs many rounds. What is
    compared in a component does not depend on the others, so that they may be divided among tasks.
    """
    num_rounds = 0
    while True:
        num_rounds += 1
        graph = SimilarityGraph(alike.pairs, ranks)
        chosen = graph.choose_pairs(num_reference)
        unverified = chosen[~alike.is_exact[chosen]]
        if not len(unverified):
            return graph.removals(alike.similarities, num_reference)
        if num_rounds > _MAX_ROUNDS:
            roots = graph.roots()[graph.worse]
            unverified = np.flatnonzero(~alike.is_exact & np.isin(roots, roots[unverified]))
        # In the order of `Pairs`, so that texts are read in the order in which they are stored.
        unverified = unverified[np.lexsort((alike.pairs.first[unverified], alike.pairs.second[unverified]))]
        similarities, is_exact = alike.similarities.copy(), alike.is_exact.copy()
        similarities[unverified] = compare_texts(alike.take(unverified).pairs)
        is_exact[unverified] = True
        alike = SimilarPairs(alike.pairs, similarities, is_exact)
        alike = alike.take(~is_exact | (similarities >= threshold))


@kernel
def _find_root(roots: NDArray[np.int64], node: int) -> int:
    """Find the root of a component, and shorten the path to it."""
    while roots[node] != node:
        roots[node] = roots[roots[node]]
        node = roots[node]
    return node


@kernel
def join_components(left: NDArray[np.int64], right: NDArray[np.int64], roots: NDArray[np.int64]) -> None:
    """Unite the components of each pair; of two roots the smaller one wins. `roots` may be those of earlier pairs."""
    for pair in range(len(left)):
        first, second = _find_root(roots, left[pair]), _find_root(roots, right[pair])
        if first < second:
            roots[second] = first
        else:
            roots[first] = second
    for node in range(len(roots)):
        roots[node] = _find_root(roots, node)


@kernel
def _choose_survivors(
    better: NDArray[np.int64], worse: NDArray[np.int64], is_reference: NDArray[np.bool_], chosen: NDArray[np.int64]
) -> None:
    """Write the pair of each removed document with its survivor. Pairs are sorted by `worse`, then `better`.

    When a document is the better one of a pair, all pairs in which it is the worse one have been seen, since these are
    sorted first: so it is known whether it survives.
    """
    for pair in range(len(better)):
        if chosen[worse[pair]] < 0 and chosen[better[pair]] < 0 and not is_reference[worse[pair]]:
            chosen[worse[pair]] = pair


def digest_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """Return the digest of each text: 128 bits, as two numbers."""
    data, offsets = get_text_buffers(texts)
    view, digest = memoryview(data.data), xxhash.xxh3_128_digest
    joined = b"".join([digest(view[start:stop]) for start, stop in pairwise(offsets.tolist())])
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def find_copies(digests: NDArray[np.uint64], documents: NDArray[np.int64], ranks: Ranks) -> Removals:
    """Find the documents whose text a better document has too."""
    groups = group_by_digest(digests, documents, ranks)
    sizes = np.diff(groups.starts)
    is_first = np.zeros(len(groups.documents), dtype=bool)
    is_first[groups.starts[:-1]] = True
    survivors = np.repeat(groups.documents[groups.starts[:-1]], sizes)[~is_first]
    removed = groups.documents[~is_first]
    order = np.argsort(removed)
    return Removals(removed[order], survivors[order], np.ones(len(removed)))


def call_kernels() -> None:
    """Call every compiled function of deduplication, so that a run compiles them before its workers start."""
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


def sign_batch(step: Deduplicate, batch: pa.RecordBatch) -> SignedTexts:
    """Sign the texts of a batch, or its images. What cannot be decoded has no signature: only its copies are found."""
    if step.kind != "image":
        return step.minhash.sign(batch.column(TEXT))
    columns = [batch.column(name).to_pylist() for name in list_image_columns(batch.schema)]
    contents = [next((content for content in row if content is not None), None) for row in zip(*columns, strict=True)]
    rows, signatures = sign_images(contents)
    counts = np.zeros(batch.num_rows, np.int64)
    counts[rows] = 1
    return SignedTexts(counts, rows, make_band_keys(signatures, step.num_band_keys), signatures)


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
