"""Documents with a key in common, as pairs that may be similar.

Linear in the number of documents, however many share a key: in a group of up to `ALL_PAIRS` documents all pairs are
candidates; in a larger one each document is paired with the group's best, with the one before it, and with a few likely
ones (`large_groups`), about as many for each document as in the largest of the other groups.

Rank: of two documents the one with the smaller (rank, number) is the better one, and survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.steps.deduplicate.large_groups import pair_likely_members

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.steps.deduplicate.large_groups import Sketches

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
