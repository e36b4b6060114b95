"""Documents with a key in common, as pairs that may be similar.

Linear in the number of documents, however many share a key: in a group of up to `ALL_PAIRS` documents all pairs are
candidates; in a larger one each document is paired with the group's best, with the one before it, and with a few likely
ones (`large_groups`), about as many for each document as in the largest of the other groups.

Rank: of two documents the one with the smaller (rank, number) is the better one, and survives.

Likely pairs in a group of many documents with a common key: a constant number for each member.

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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


if TYPE_CHECKING:
    Ranks = Callable[[NDArray[np.int64]], NDArray[np.uint64]]
    """A function that returns the ranks of documents."""

ALL_PAIRS = 24
"""The size up to which all pairs of a group are candidates: eleven or twelve for each member, as in larger groups."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, each once, sorted by the second and then the first; the first has the smaller number."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)

    def slice(self, start: int, stop: int) -> Pairs:
        return Pairs(self.first[start:stop], self.second[start:stop])

    @staticmethod
    def of(left: NDArray[np.int64], right: NDArray[np.int64]) -> Pairs:
        """Sort pairs, and keep each once."""
        first, second = np.minimum(left, right), np.maximum(left, right)
        order = np.lexsort((first, second))
        first, second = first[order], second[order]
        is_new = np.ones(len(first), dtype=bool)
        is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        return Pairs(first[is_new], second[is_new])


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Documents that share a key: group after group, in each the best one first."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where each group begins, and where the last one ends."""
    keys: NDArray[np.uint64]
    """The key of each document's group."""


def mark_repeated(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark the keys that occur twice or more, and some others: few enough that sorting the rest takes less time.

    Keys are counted by their low bits, in four counters for each: about 10 ns a key, where sorting takes 50.
    """
    counters = np.zeros(1 << (4 * len(keys)).bit_length(), np.uint8)
    is_repeated = np.empty(len(keys), np.bool_)
    _count_low_bits(keys, counters, is_repeated)
    return is_repeated


@kernel
def _count_low_bits(keys: NDArray[np.uint64], counters: NDArray[np.uint8], is_repeated: NDArray[np.bool_]) -> None:
    mask = np.uint64(len(counters) - 1)
    for index in range(len(keys)):
        slot = keys[index] & mask
        counters[slot] += np.uint8(counters[slot] < 2)
    for index in range(len(keys)):
        is_repeated[index] = counters[keys[index] & mask] > 1


def group_by_key(keys: NDArray[np.uint64], documents: NDArray[np.int64], ranks: Ranks | None = None) -> KeyGroups:
    """Return the groups of two and more documents; each document must be at most once under each key.

    Without ranks the documents of a group are in the order of their numbers.
    """
    order = np.argsort(keys)
    keys = keys[order]
    is_start = np.ones(len(keys) + 1, dtype=bool)
    is_start[1:-1] = keys[1:] != keys[:-1]
    # A group that begins where the next one begins too has one member.
    in_group = ~(is_start[:-1] & is_start[1:])
    keys, documents = keys[in_group], documents[order[in_group]]
    is_first = is_start[:-1][in_group]
    starts = np.flatnonzero(np.append(is_first, True))
    if ranks is None:
        return KeyGroups(_sort_in_groups(documents, is_first), starts, keys)
    order = np.lexsort((documents, ranks(documents), keys))
    return KeyGroups(documents[order], starts, keys)


def _sort_in_groups(documents: NDArray[np.int64], is_first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sort the documents of each group: as one number with that of the group, if both fit, five times as fast."""
    groups = np.cumsum(is_first)
    num_bits = int(documents.max(initial=0)).bit_length()
    if num_bits + len(groups).bit_length() >= 64:
        return documents[np.lexsort((documents, groups))]
    numbers = np.sort(groups << num_bits | documents)
    return numbers & ((1 << num_bits) - 1)


def group_by_digest(digests: NDArray[np.uint64], documents: NDArray[np.int64], ranks: Ranks) -> KeyGroups:
    """Like `group_by_key`, for keys of 128 bits: two numbers a document."""
    # Group by the first half, sorted by the second half: then equal digests are neighbours.
    groups = group_by_key(digests[:, 0], np.arange(len(documents)), lambda rows: digests[rows, 1])
    rows = groups.documents
    halves = digests[rows]
    is_start = np.ones(len(rows) + 1, dtype=bool)
    is_start[1:-1] = (halves[1:] != halves[:-1]).any(axis=1)
    in_group = ~(is_start[:-1] & is_start[1:])
    number = np.cumsum(is_start[:-1])[in_group]
    copies = documents[rows[in_group]]
    order = np.lexsort((copies, ranks(copies), number))
    starts = np.flatnonzero(np.append(is_start[:-1][in_group], True))
    return KeyGroups(copies[order], starts, halves[in_group, 0])


def find_candidate_pairs(groups: KeyGroups, sketches: Sketches | None = None, num_reference: int = 0) -> Pairs:
    """Return the pairs to compare; some may be pairs of two reference documents, the first `num_reference`.

    Sketches are needed for groups of more than `ALL_PAIRS` only.
    """
    sizes = np.diff(groups.starts)
    num_pairs = np.where(sizes <= ALL_PAIRS, sizes * (sizes - 1) // 2, 2 * sizes - 3)
    left_ends, right_ends = np.empty(num_pairs.sum(), np.int64), np.empty(num_pairs.sum(), np.int64)
    _write_pairs(groups.documents, groups.starts, ALL_PAIRS, left_ends, right_ends)
    lefts, rights = [left_ends], [right_ends]
    for group in np.flatnonzero(sizes > ALL_PAIRS):
        members = groups.documents[groups.starts[group] : groups.starts[group + 1]]
        assert sketches is not None
        for left, right in pair_likely_members(members, sketches, num_reference):
            lefts.append(left)
            rights.append(right)
    return Pairs.of(np.concatenate(lefts), np.concatenate(rights))


@kernel
def _write_pairs(
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    all_pairs: int,
    first_ends: NDArray[np.int64],
    second_ends: NDArray[np.int64],
) -> None:
    num_written = 0
    for group in range(len(starts) - 1):
        first, stop = starts[group], starts[group + 1]
        for second in range(first + 1, stop):
            if stop - first <= all_pairs:
                for first_index in range(first, second):
                    first_ends[num_written], second_ends[num_written] = documents[first_index], documents[second]
                    num_written += 1
                continue
            first_ends[num_written], second_ends[num_written] = documents[first], documents[second]
            num_written += 1
            if second > first + 1:
                first_ends[num_written], second_ends[num_written] = documents[second - 1], documents[second]
                num_written += 1


if TYPE_CHECKING:
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
