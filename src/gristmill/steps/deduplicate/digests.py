"""The whole of `deduplicate` for texts that are in memory: what the pipeline does in stages, in one function.

For tests, benchmarks and small data; the pipeline gives the same for the same texts in the same order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from gristmill.steps.deduplicate.candidates import Pairs, find_candidate_pairs, group_by_digest, group_by_key
from gristmill.steps.deduplicate.clusters import Removals, SimilarityGraph, merge_removals, verify_removals
from gristmill.steps.deduplicate.similarity import SimilarPairs, classify_pairs
from gristmill.text.buffers import text_buffers
from gristmill.text.shingles import ShingleSets, estimate_similarities, jaccard

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.steps.deduplicate.candidates import Ranks
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 16


def digest_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """128 bits of each text, two numbers; equal texts have equal ones."""
    data, offsets = text_buffers(texts)
    view, digest = memoryview(data.data), xxhash.xxh3_128_digest
    joined = b"".join([digest(view[start:stop]) for start, stop in pairwise(offsets.tolist())])
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def find_copies(digests: NDArray[np.uint64], documents: NDArray[np.int64], ranks: Ranks) -> Removals:
    """The documents whose text a better one has."""
    found = group_by_digest(digests, documents, ranks)
    sizes = np.diff(found.starts)
    is_first = np.zeros(len(found.documents), dtype=bool)
    is_first[found.starts[:-1]] = True
    survivors = np.repeat(found.documents[found.starts[:-1]], sizes)[~is_first]
    removed = found.documents[~is_first]
    order = np.argsort(removed)
    return Removals(removed[order], survivors[order], np.ones(len(removed)))


def find_duplicates(step: Deduplicate, texts: pa.Array) -> tuple[Removals, NDArray[np.bool_]]:
    """What `step` would remove of these texts, and for each whether its survivor has the same text.

    >>> import pyarrow as pa
    >>> from gristmill.steps import Deduplicate
    >>> found, is_exact = find_duplicates(Deduplicate(), pa.array(["one", "two", "one"], pa.large_string()))
    >>> found.documents.tolist(), found.survivors.tolist(), is_exact.tolist()
    ([2], [0], [True])
    """
    _, offsets = text_buffers(texts)
    longest_first = np.uint64(1 << 48) - np.diff(offsets).astype(np.uint64)
    lengths = longest_first if step.prefer_longest else np.zeros(len(texts), np.uint64)

    def ranks(documents: NDArray[np.int64]) -> NDArray[np.uint64]:
        return lengths[documents]

    copies = find_copies(digest_texts(texts), np.arange(len(texts)), ranks)
    if step.kind == "exact":
        return copies, np.ones(len(copies.documents), dtype=bool)
    signed = step.minhash.sign(texts)
    is_left = np.ones(len(texts), dtype=bool)
    is_left[copies.documents] = False
    is_left = is_left[signed.rows]
    sketch_of = np.full(len(texts), -1)
    sketch_of[signed.rows] = np.arange(len(signed.rows))
    documents = np.repeat(signed.rows[is_left], step.bands)

    def sketches(documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = signed.sketches[sketch_of[documents]]
        return found

    pairs = find_candidate_pairs(group_by_key(signed.keys[is_left].reshape(-1), documents, ranks), sketches)

    def compare_texts(pairs: Pairs) -> NDArray[np.float64]:
        needed = np.unique(np.concatenate([pairs.first, pairs.second]))
        sets = dict(zip(needed.tolist(), ShingleSets(step.ngram).of(texts, needed), strict=True))
        ends = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
        return np.array([jaccard(sets[one], sets[other]) for one, other in ends], np.float64)

    def compare(pairs: Pairs) -> SimilarPairs:
        found = np.empty(len(pairs))
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            some = pairs.slice(start, start + _PAIRS_AT_ONCE)
            found[start : start + len(some)] = estimate_similarities(sketches(some.first), sketches(some.second))
        judgement = classify_pairs(step, found)
        undecided = judgement.undecided
        found[undecided] = compare_texts(Pairs(pairs.first[undecided], pairs.second[undecided]))
        return SimilarPairs(pairs, found, undecided).take(judgement.alike | (undecided & (found >= step.threshold)))

    alike = compare(pairs)
    alike = SimilarPairs.concatenate(alike, compare(SimilarityGraph(alike.pairs, ranks).missing_pairs()))
    if step.verify == "signature":
        near = SimilarityGraph(alike.pairs, ranks).removals(alike.similarities, 0)
    else:
        near = verify_removals(alike, ranks, 0, step.threshold, compare_texts)
    return merge_removals(near, copies)
