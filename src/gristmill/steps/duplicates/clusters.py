"""Who stays: documents in the order of their ranks, and each goes that is alike to a better one which stays.

So whoever is removed is alike to its own survivor, and no chain of likenesses removes what is unlike. Where bands have
not brought a document together with the best of its cluster, that pair is compared as well (`missing_pairs`): the root
of a component is its smallest rank, whatever the order in which pairs are joined. Linear in the number of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.kernels import kernel
from gristmill.steps.duplicates.candidates import Pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.steps.duplicates.candidates import Ranks


@dataclass(frozen=True, slots=True)
class Removals:
    """Documents that go, sorted, each with the one that stays for it."""

    documents: NDArray[np.int64]
    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]

    @staticmethod
    def none() -> Removals:
        return Removals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


class Likenesses:
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
        join(self.better, self.worse, roots)
        return roots

    def missing_pairs(self) -> Pairs:
        """Documents with the best of their component, where these have not been compared."""
        roots = self.roots()
        is_joined = roots == np.arange(len(roots))
        is_joined[self.worse[self.better == roots[self.worse]]] = True
        lonely = np.flatnonzero(~is_joined)
        return Pairs.of(self.documents[roots[lonely]], self.documents[lonely])

    def removals(self, similarities: NDArray[np.float64], num_fixed: int) -> Removals:
        """Who goes; documents with numbers below `num_fixed` never do. `similarities` are those of the pairs."""
        order = np.lexsort((self.better, self.worse))
        chosen = np.full(len(self.documents), -1, dtype=np.int64)
        _choose(self.better[order], self.worse[order], self.documents < num_fixed, chosen)
        removed = np.flatnonzero(chosen >= 0)
        pairs = order[chosen[removed]]
        documents, survivors = self.documents[removed], self.documents[self.better[pairs]]
        return _sorted(documents, survivors, similarities[pairs])

    def components(self, estimates: NDArray[np.float64], num_fixed: int) -> Removals:
        """Who goes where all that hangs together is one (`verify: off`); an estimate of a pair stands for each."""
        roots = self.roots()
        removed = np.flatnonzero((roots != np.arange(len(roots))) & (self.documents >= num_fixed))
        best = np.zeros(len(roots))
        np.maximum.at(best, self.worse, estimates)
        return _sorted(self.documents[removed], self.documents[roots[removed]], best[removed])


def _sorted(documents: NDArray[np.int64], survivors: NDArray[np.int64], similarities: NDArray[np.float64]) -> Removals:
    order = np.argsort(documents)
    return Removals(documents[order], survivors[order], similarities[order])


def with_copies(near: Removals, copies: Removals) -> tuple[Removals, NDArray[np.bool_]]:
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
def _root(roots: NDArray[np.int64], place: int) -> int:
    while roots[place] != place:
        roots[place] = roots[roots[place]]
        place = roots[place]
    return place


@kernel
def join(one: NDArray[np.int64], other: NDArray[np.int64], roots: NDArray[np.int64]) -> None:
    """Unite the components of each pair; of two roots the smaller one stays. `roots` may be those of earlier pairs."""
    for pair in range(len(one)):
        first, second = _root(roots, one[pair]), _root(roots, other[pair])
        if first < second:
            roots[second] = first
        else:
            roots[first] = second
    for place in range(len(roots)):
        roots[place] = _root(roots, place)


@kernel
def _choose(
    better: NDArray[np.int64], worse: NDArray[np.int64], is_fixed: NDArray[np.bool_], chosen: NDArray[np.int64]
) -> None:
    """For each document that goes, the pair with its survivor. Pairs are sorted by `worse`, then `better`.

    When a document's turn comes, all pairs in which it was the worse one have been seen: it is known whether it stays.
    """
    for pair in range(len(better)):
        if chosen[worse[pair]] < 0 and chosen[better[pair]] < 0 and not is_fixed[worse[pair]]:
            chosen[worse[pair]] = pair
