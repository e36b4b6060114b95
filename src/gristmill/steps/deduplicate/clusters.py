"""The choice of survivors: in the order of ranks, a document is removed if it is similar to a better one that survives.

So every removed document is similar to its own survivor, and no chain of similarities removes a dissimilar document. If
bands have not paired a document with the best of its cluster, that pair is compared as well (`missing_pairs`): the root
of a component is its smallest rank, whatever the order in which pairs are joined. Linear in the number of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.similarity import SimilarPairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.steps.deduplicate.candidates import Ranks

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
