"""The sums over words and the walk down the tree, compiled.

Sums are of integers (vectors times 2^20), so they do not depend on the order of addition. The sum of a word's pieces is
cached under a 64-bit hash for the next time it occurs, except for long words (a sentence in a script without spaces).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_START = np.uint32(2166136261)
_PRIME = np.uint32(16777619)
_SIGN = np.uint32(0xFFFFFF00)
_BEGIN, _END = np.uint8(0x3C), np.uint8(0x3E)  # < >
_SMALL = 1e-5
_DEEPER = 1e-3
"""More than `log(1 + _SMALL)` for each step down the tree: by this much a leaf may be likelier than a node above it."""
_LONG_START = np.uint64(0xCBF29CE484222325)
_LONG_PRIME = np.uint64(0x100000001B3)
_MAX_KNOWN = 48
_PRUNED = np.uint16(0xFFFF)


@kernel
def _hash_byte(before: np.uint32, byte: np.uint8) -> np.uint32:
    """Add a byte to an FNV-1a hash, with bytes as signed numbers, like fastText."""
    value = np.uint32(byte)
    if byte >= 0x80:
        value |= _SIGN
    return np.uint32((before ^ value) * _PRIME)


@kernel
def _is_separator(byte: int) -> bool:
    return byte == 0x20 or 0x09 <= byte <= 0x0D or byte == 0


@kernel
def _compute_remainder(hashed: np.uint32, divisor: np.uint64, inverse: np.uint64) -> np.uint64:
    """Compute `hashed % divisor` without a division; `inverse` is 2^52 / divisor, rounded up."""
    value = np.uint64(hashed)
    product = ((value * inverse) >> np.uint64(52)) * divisor
    return value - product if product <= value else value + divisor - product


@kernel
def _find_word_row(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    hashed: np.uint32,
    table: NDArray[np.int32],
    words: NDArray[np.uint8],
    word_ends: NDArray[np.int64],
) -> int:
    """Find the row of a whole word; -1 if the model does not have it."""
    mask = len(table) - 1
    slot = np.int64(hashed) & mask
    while table[slot] >= 0:
        row = table[slot]
        first = word_ends[row - 1] if row else 0
        if word_ends[row] - first == end - start:
            same = True
            for offset in range(end - start):
                same &= words[first + offset] == data[start + offset]
            if same:
                return int(row)
        slot = (slot + 1) & mask
    return -1


@kernel
def _add(sums: NDArray[np.int64], vector: NDArray[np.int32]) -> None:
    for column in range(len(vector)):
        sums[column] += vector[column]


@kernel
def _add_word(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    min_subword: int,
    max_subword: int,
    subword_rows: NDArray[np.uint16],
    vectors: NDArray[np.int32],
    sums: NDArray[np.int64],
) -> int:
    """Add the vectors of the pieces of `<word>`; returns how many there are.

    With pieces of 3 to 4 characters, `<the>` has `<th`, `<the`, `the`, `the>` and `he>`.
    """
    count = 0
    divisor = np.uint64(len(subword_rows))
    inverse = np.uint64((1 << 52) // len(subword_rows) + 1)
    size = end - start + 2
    for first in range(size):
        if 0 < first < size - 1 and (data[start + first - 1] & 0xC0) == 0x80:
            continue
        hashed = _START
        position = first
        for length in range(1, max_subword + 1):
            if position >= size:
                break
            while True:
                inner = 0 < position < size - 1
                hashed = _hash_byte(hashed, data[start + position - 1] if inner else _END if position else _BEGIN)
                position += 1
                if not (0 < position < size - 1 and (data[start + position - 1] & 0xC0) == 0x80):
                    break
            if length >= min_subword and not (length == 1 and (first == 0 or position == size)):
                row = subword_rows[_compute_remainder(hashed, divisor, inverse)]
                if row != _PRUNED:
                    _add(sums, vectors[row])
                    count += 1
    return count


@kernel
def add_texts(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    owners: NDArray[np.int64],
    table: NDArray[np.int32],
    words: NDArray[np.uint8],
    word_ends: NDArray[np.int64],
    min_subword: int,
    max_subword: int,
    subword_rows: NDArray[np.uint16],
    vectors: NDArray[np.int32],
    known_words: NDArray[np.uint64],
    known_sums: NDArray[np.int64],
    sums: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Add up the words from `begins` to `ends` of each piece of text, for the document (`owners`) that has it.

    `known_words` and `known_sums` are the cache: the hash of a word, and its sum and count. Their length is one more
    than a power of two.
    """
    for piece in range(len(begins)):
        position, end = begins[piece], ends[piece]
        owner = owners[piece]
        while position < end:
            if _is_separator(data[position]):
                position += 1
                continue
            start = position
            hashed, key = _START, _LONG_START
            while position < end and not _is_separator(data[position]):
                hashed = _hash_byte(hashed, data[position])
                key = (key ^ np.uint64(data[position])) * _LONG_PRIME
                position += 1
            # The last slot is for words that are not cached.
            slot = (
                np.int64(key >> np.uint64(40)) & (len(known_words) - 2)
                if position - start <= _MAX_KNOWN
                else len(known_words) - 1
            )
            if known_words[slot] != key or position - start > _MAX_KNOWN:
                known_words[slot] = key
                total = known_sums[slot]
                total[:] = 0
                row = _find_word_row(data, start, position, hashed, table, words, word_ends)
                if row >= 0:
                    _add(total, vectors[row])
                    total[len(total) - 1] = 1
                total[len(total) - 1] += _add_word(
                    data, start, position, min_subword, max_subword, subword_rows, vectors, total
                )
            total = known_sums[slot]
            for column in range(sums.shape[1]):
                sums[owner, column] += total[column]
            counts[owner] += total[len(total) - 1]


@kernel
def _compute_right_probability(mean: NDArray[np.float64], node: NDArray[np.float64]) -> float:
    """Compute the probability of the right child of a node."""
    dot = 0.0
    for column in range(len(node)):
        dot += mean[column] * node[column]
    return 1.0 / (1.0 + math.exp(-dot))


@kernel
def choose_labels(
    sums: NDArray[np.int64],
    counts: NDArray[np.int64],
    scale: float,
    nodes: NDArray[np.float64],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    mean: NDArray[np.float64],
    logs: NDArray[np.float64],
    labels: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    """Find the most likely leaf of the tree for each document, and its probability.

    Node i has the children `left[i]` and `right[i]`: numbers below the number of leaves are labels, others are nodes,
    counted from there. Always going to the likelier child leads to a first leaf. Subtrees of nodes that are less likely
    than it cannot hold a better one and are skipped.
    """
    num_leaves = len(left) + 1
    for document in range(len(sums)):
        for column in range(len(mean)):
            mean[column] = sums[document, column] / (counts[document] * scale)
        best, at_least = 2 * num_leaves - 2, 0.0
        while best >= num_leaves:
            share = _compute_right_probability(mean, nodes[best - num_leaves])
            at_least += math.log(max(share, 1.0 - share) + _SMALL)
            best = right[best - num_leaves] if share > 0.5 else left[best - num_leaves]
        logs[2 * num_leaves - 2] = 0.0
        for node in range(num_leaves - 2, -1, -1):
            so_far = logs[num_leaves + node]
            if so_far < at_least - _DEEPER:
                logs[left[node]] = logs[right[node]] = so_far
                continue
            share = _compute_right_probability(mean, nodes[node])
            logs[left[node]] = so_far + math.log(1.0 - share + _SMALL)
            logs[right[node]] = so_far + math.log(share + _SMALL)
        for leaf in range(num_leaves):
            if logs[leaf] > logs[best]:
                best = leaf
        labels[document] = best
        scores[document] = math.exp(logs[best])
