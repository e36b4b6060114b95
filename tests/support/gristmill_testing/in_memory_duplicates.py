"""The whole of `deduplicate` for texts in memory, in one function: the oracle for its barrier.

The pipeline removes the same documents for the same texts in the same order. Benchmarks use it too, since it times the
kernels and nothing else.
"""

import numpy as np

from gristmill.steps.deduplicate.candidates import Pairs, find_candidate_pairs, group_by_key
from gristmill.steps.deduplicate.clusters import (
    Removals,
    SimilarityGraph,
    SimilarPairs,
    classify_pairs,
    digest_texts,
    find_copies,
    verify_removals,
)
from gristmill.text.buffers import get_text_buffers
from gristmill.text.minhash import ShingleSets, estimate_similarities

PAIRS_AT_ONCE = 1 << 16


def find_duplicates(step, texts):
    """Return what `step` removes of these texts, and for each whether its survivor has the same text.

    >>> import pyarrow as pa
    >>> from gristmill.steps import Deduplicate
    >>> removals, is_exact = find_duplicates(Deduplicate(), pa.array(["one", "two", "one"], pa.large_string()))
    >>> removals.documents.tolist(), removals.survivors.tolist(), is_exact.tolist()
    ([2], [0], [True])
    """
    _, offsets = get_text_buffers(texts)
    longest_first = np.uint64(1 << 48) - np.diff(offsets).astype(np.uint64)
    lengths = longest_first if step.prefer_longest else np.zeros(len(texts), np.uint64)

    def ranks(documents):
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

    def sketches(documents):
        return signed.sketches[sketch_of[documents]]

    pairs = find_candidate_pairs(group_by_key(signed.keys[is_left].reshape(-1), documents, ranks), sketches)

    def compare_texts(pairs):
        needed = np.unique(np.concatenate([pairs.first, pairs.second]))
        sets = ShingleSets.of(texts.take(needed), step.ngram)
        return sets.compare(np.searchsorted(needed, pairs.first), np.searchsorted(needed, pairs.second))

    def compare(pairs):
        similarities = np.empty(len(pairs))
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            piece = pairs.slice(start, start + PAIRS_AT_ONCE)
            estimates = estimate_similarities(sketches(piece.first), sketches(piece.second))
            similarities[start : start + len(piece)] = estimates
        classified = classify_pairs(step, similarities)
        undecided = classified.undecided
        similarities[undecided] = compare_texts(Pairs(pairs.first[undecided], pairs.second[undecided]))
        is_alike = classified.alike | (undecided & (similarities >= step.threshold))
        return SimilarPairs(pairs, similarities, undecided).take(is_alike)

    alike = compare(pairs)
    alike = SimilarPairs.concatenate(alike, compare(SimilarityGraph(alike.pairs, ranks).missing_pairs()))
    if step.verify == "signature":
        near = SimilarityGraph(alike.pairs, ranks).removals(alike.similarities, 0)
    else:
        near = verify_removals(alike, ranks, 0, step.threshold, compare_texts)
    return merge_removals(near, copies)


def merge_removals(near, copies):
    """Merge exact and near removals; also return for each whether its survivor has the same text.

    If the survivor of an exact copy is itself removed as a near copy of a third document, that is the survivor of both.
    """
    survivors, similarities = copies.survivors.copy(), copies.similarities.copy()
    is_exact = np.ones(len(survivors), dtype=bool)
    if len(near.documents):
        indexes = np.minimum(np.searchsorted(near.documents, survivors), len(near.documents) - 1)
        is_removed = near.documents[indexes] == survivors
        survivors[is_removed] = near.survivors[indexes[is_removed]]
        similarities[is_removed] = near.similarities[indexes[is_removed]]
        is_exact[is_removed] = False
    documents = np.concatenate([copies.documents, near.documents])
    order = np.argsort(documents)
    is_exact = np.concatenate([is_exact, np.zeros(len(near.documents), dtype=bool)])
    return Removals(
        documents[order],
        np.concatenate([survivors, near.survivors])[order],
        np.concatenate([similarities, near.similarities])[order],
    ), is_exact[order]
