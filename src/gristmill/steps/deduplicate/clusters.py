"""Who stays: documents in the order of their ranks, and each goes that is alike to a better one which stays.

So whoever is removed is alike to its own survivor, and no chain of likenesses removes what is unlike. Where bands have
not brought a document together with the best of its cluster, that pair is compared as well (`missing_pairs`): the root
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
    """The exact similarities of pairs."""

_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Removals:
    """Documents that go, sorted, each with the one that stays for it."""

    documents: NDArray[np.int64]
    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]

    @staticmethod
    def none() -> Removals:
        return Removals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


class SimilarityGraph:
    """Pairs that are alike, as a graph of documents numbered from the best on."""

    def __init__(self, pairs: Pairs, ranks: Ranks) -> None:
        documents, ends = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
        order = np.lexsort((documents, ranks(documents)))
        self.documents: NDArray[np.int64] = documents[order]
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        one, other = places[ends[: len(pairs)]], places[ends[len(pairs) :]]
        self.better, self.worse = np.minimum(one, other), np.maximum(one, other)

    def roots(self) -> NDArray[np.int64]:
        """For each document the best one of its component."""
        roots = np.arange(len(self.documents))
        join_components(self.better, self.worse, roots)
        return roots

    def missing_pairs(self) -> Pairs:
        """Documents with the best of their component, where these have not been compared."""
        roots = self.roots()
        is_joined = roots == np.arange(len(roots))
        is_joined[self.worse[self.better == roots[self.worse]]] = True
        lonely = np.flatnonzero(~is_joined)
        return Pairs.of(self.documents[roots[lonely]], self.documents[lonely])

    def choose_pairs(self, num_fixed: int) -> NDArray[np.int64]:
        """The pair of each removed document with its survivor; those numbered below `num_fixed` are never removed."""
        order = np.lexsort((self.better, self.worse))
        chosen = np.full(len(self.documents), -1, dtype=np.int64)
        _choose_survivors(self.better[order], self.worse[order], self.documents < num_fixed, chosen)
        return order[chosen[chosen >= 0]]

    def removals(self, similarities: NDArray[np.float64], num_fixed: int) -> Removals:
        """Who goes; `similarities` are those of the pairs."""
        pairs = self.choose_pairs(num_fixed)
        documents, survivors = self.documents[self.worse[pairs]], self.documents[self.better[pairs]]
        order = np.argsort(documents)
        return Removals(documents[order], survivors[order], similarities[pairs][order])


def verify_removals(
    alike: SimilarPairs, ranks: Ranks, num_fixed: int, threshold: float, compare_texts: CompareTexts
) -> Removals:
    """Who goes, each pair of a removed document and its survivor verified by `compare_texts`.

    A pair that fails is taken out and the documents are gone through again. The result is that of comparing the texts
    of all pairs: who goes depends only on pairs that were verified, and the others could at most have removed more.
    After `_MAX_ROUNDS` all pairs that are left are compared at once, so that no data makes it many rounds.
    """
    num_rounds = 0
    while True:
        num_rounds += 1
        graph = SimilarityGraph(alike.pairs, ranks)
        chosen = graph.choose_pairs(num_fixed)
        unverified = chosen[~alike.is_exact[chosen]]
        if not len(unverified):
            return graph.removals(alike.similarities, num_fixed)
        if num_rounds > _MAX_ROUNDS:
            unverified = np.flatnonzero(~alike.is_exact)
        # As in `Pairs`: what is read lies together.
        unverified = unverified[np.lexsort((alike.pairs.first[unverified], alike.pairs.second[unverified]))]
        similarities, is_exact = alike.similarities.copy(), alike.is_exact.copy()
        similarities[unverified] = compare_texts(alike.take(unverified).pairs)
        is_exact[unverified] = True
        alike = SimilarPairs(alike.pairs, similarities, is_exact)
        alike = alike.take(~is_exact | (similarities >= threshold))


def merge_removals(near: Removals, copies: Removals) -> tuple[Removals, NDArray[np.bool_]]:
    """All that goes, and for each whether its survivor has the same text.

    The copy of a text that itself goes for a third one has that as its survivor: it is no more alike to it.
    """
    survivors, similarities = copies.survivors.copy(), copies.similarities.copy()
    is_exact = np.ones(len(survivors), dtype=bool)
    if len(near.documents):
        places = np.minimum(np.searchsorted(near.documents, survivors), len(near.documents) - 1)
        is_gone = near.documents[places] == survivors
        survivors[is_gone] = near.survivors[places[is_gone]]
        similarities[is_gone] = near.similarities[places[is_gone]]
        is_exact[is_gone] = False
    documents = np.concatenate([copies.documents, near.documents])
    order = np.argsort(documents)
    is_exact = np.concatenate([is_exact, np.zeros(len(near.documents), dtype=bool)])
    return Removals(
        documents[order],
        np.concatenate([survivors, near.survivors])[order],
        np.concatenate([similarities, near.similarities])[order],
    ), is_exact[order]


@kernel
def _find_root(roots: NDArray[np.int64], place: int) -> int:
    while roots[place] != place:
        roots[place] = roots[roots[place]]
        place = roots[place]
    return place


@kernel
def join_components(one: NDArray[np.int64], other: NDArray[np.int64], roots: NDArray[np.int64]) -> None:
    """Unite the components of each pair; of two roots the smaller one stays. `roots` may be those of earlier pairs."""
    for pair in range(len(one)):
        first, second = _find_root(roots, one[pair]), _find_root(roots, other[pair])
        if first < second:
            roots[second] = first
        else:
            roots[first] = second
    for place in range(len(roots)):
        roots[place] = _find_root(roots, place)


@kernel
def _choose_survivors(
    better: NDArray[np.int64], worse: NDArray[np.int64], is_fixed: NDArray[np.bool_], chosen: NDArray[np.int64]
) -> None:
    """For each document that goes, the pair with its survivor. Pairs are sorted by `worse`, then `better`.

    When a document's turn comes, all pairs in which it was the worse one have been seen: it is known whether it stays.
    """
    for pair in range(len(better)):
        if chosen[worse[pair]] < 0 and chosen[better[pair]] < 0 and not is_fixed[worse[pair]]:
            chosen[worse[pair]] = pair
