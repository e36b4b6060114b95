"""Likely pairs in a group of many documents with a common key: a constant number for each member.

Texts made from one template share bands by the template alone, so that a band says little about them. What a text has
in common with only a few of the group says more. So for each of `ORDERS` orders, a weighted MinHash chooses two rare
values of each member's sketch (a value that c members have is chosen with a weight of 1/c; a value that no other member
has is useless), the group is sorted by these, and each member is paired with its nearest neighbours.

No two reference documents, which always stay, are paired, and they do not separate others: each document that may be
removed is paired with its nearest neighbours among those that may be removed, and among the reference documents.

Cost: the sketches of a group are read once, in pieces of 64Ki documents; twice if there is more than one piece. Then
there are `ORDERS` sorts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Sketches = Callable[[NDArray[np.int64]], NDArray[np.uint8]]
    """A function that returns the sketches of documents."""

ORDERS = 3
NEIGHBOURS = 3
_AT_ONCE = 1 << 16


def pair_likely_members(
    members: NDArray[np.int64], sketches: Sketches, num_reference: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield both sides of the pairs for each order; documents below `num_reference` always stay."""
    pieces = [members[start : start + _AT_ONCE] for start in range(0, len(members), _AT_ONCE)]
    only = sketches(pieces[0]) if len(pieces) == 1 else None
    counts = np.zeros(0, np.uint64)
    for piece in pieces:
        piece_sketches = sketches(piece) if only is None else only
        if not len(counts):
            counts = np.zeros(piece_sketches.shape[1] * 256, np.uint64)
        _count_values(piece_sketches, counts)
    keys = np.empty((ORDERS, len(members)), np.uint64)
    for number, piece in enumerate(pieces):
        piece_sketches = sketches(piece) if only is None else only
        start = number * _AT_ONCE
        for order in range(ORDERS):
            _choose_values(piece_sketches, counts, np.uint64(order), keys[order, start : start + len(piece)])
    for order in range(ORDERS):
        documents = members[np.argsort(keys[order], kind="stable")]
        left, right = (np.empty(len(members) * 2 * NEIGHBOURS, np.int64) for _ in range(2))
        num_pairs = _pair_neighbours(documents, num_reference, np.empty((2, NEIGHBOURS), np.int64), left, right)
        yield left[:num_pairs], right[:num_pairs]


@kernel
def _count_values(sketches: NDArray[np.uint8], counts: NDArray[np.uint64]) -> None:
    for member in range(sketches.shape[0]):
        for column in range(sketches.shape[1]):
            counts[column * 256 + np.int64(sketches[member, column])] += np.uint64(1)


@kernel
def _hash_value(value: np.uint64, order: np.uint64) -> np.uint64:
    """Hash a value to 32 bits, differently in each order."""
    mixed = (value + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + order * np.uint64(0xD1B54A32D192ED03)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)


@kernel
def _choose_values(
    sketches: NDArray[np.uint8], counts: NDArray[np.uint64], order: np.uint64, keys: NDArray[np.uint64]
) -> None:
    """Write the two values with the least hash times count as one number; 0 if there is none."""
    largest = np.uint64(0xFFFFFFFFFFFFFFFF)
    for member in range(sketches.shape[0]):
        least, next_least = largest, largest
        chosen, next_chosen = np.uint64(0), np.uint64(0)
        for column in range(sketches.shape[1]):
            value = np.uint64(column * 256 + np.int64(sketches[member, column]))
            count = counts[value]
            if count < 2:  # no other member has it
                continue
            score = _hash_value(value, order) * count
            if score < least:
                next_least, next_chosen = least, chosen
                least, chosen = score, value + np.uint64(1)
            elif score < next_least:
                next_least, next_chosen = score, value + np.uint64(1)
        keys[member] = chosen << np.uint64(32) | next_chosen


@kernel
def _pair_neighbours(
    documents: NDArray[np.int64],
    num_reference: int,
    latest: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
) -> int:
    """Pair each document with those right before it; return the number of pairs.

    `latest` is scratch memory: two rings, of the latest reference documents and of the latest others.
    """
    size = latest.shape[1]
    num_stay = num_go = num_pairs = 0
    for document in documents:
        for back in range(1, min(size, num_go) + 1):
            left[num_pairs], right[num_pairs] = latest[1, (num_go - back) % size], document
            num_pairs += 1
        if document < num_reference:
            latest[0, num_stay % size] = document
            num_stay += 1
            continue
        for back in range(1, min(size, num_stay) + 1):
            left[num_pairs], right[num_pairs] = latest[0, (num_stay - back) % size], document
            num_pairs += 1
        latest[1, num_go % size] = document
        num_go += 1
    return num_pairs
