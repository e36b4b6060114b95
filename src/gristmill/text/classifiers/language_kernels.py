"""The compiled loops of language identification: which texts have letters, sums of vectors, the walk down the labels.

Sums are of integers (vectors times 2^20), so they do not depend on the order of addition. The sum of a word of up to 24
bytes is cached for the next time it occurs, under all of its bytes: a cache may be kept from batch to batch and changes
no result. A word that is found takes 20 to 60 ns, another one 3 ns for each of its pieces: most have no vector.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.text.byte_kernels import count_bits, load_8_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


_START = np.uint32(2166136261)
_PRIME = np.uint32(16777619)
_BEGIN, _END = np.uint32(0x3C), np.uint32(0x3E)  # < >
_MAX_KNOWN = 24
"""The bytes of the longest words that are cached: three numbers of 64 bits hold them."""
_COUNT = 3
_KEY_COLUMNS = 8
_WORD_START, _WORD_END, _TOUCHED = 3, 4, 5
_MIN_SUM, _MAX_SUM = -(2**31), 2**31 - 1

_0, _1, _7, _8, _32, _56 = (np.uint64(number) for number in (0, 1, 7, 8, 32, 56))
_3, _6, _16, _63 = (np.uint64(number) for number in (3, 6, 16, 63))
_ALL = np.uint64(2**64 - 1)
_BYTES = np.uint64(0x0101010101010101)
_ABOVE_SPACE = np.uint64(0x2121212121212121)
_HIGH_BITS = np.uint64(0x8080808080808080)
_SPREAD_1 = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_SPREAD_3 = np.uint64(0xD6E8FEB86659FD93)


@kernel
def _is_separator(byte: int) -> bool:
    return byte == 0x20 or 0x09 <= byte <= 0x0D or byte == 0


@kernel
def _find_bytes_before_space(block: np.uint64) -> np.uint64:
    """Return the bits of the bytes before the first one up to the space (0x20); all bits if there is none."""
    # The lowest high bit that is set marks that byte; those above it may be wrong.
    marks = (block - _ABOVE_SPACE) & ~block & _HIGH_BITS
    return ((marks & (~marks + _1)) >> _7) - _1


@kernel
def _find_word_end(data: NDArray[np.uint8], position: np.uint64, end: np.uint64) -> np.uint64:
    """Return where the word ends that `position` is in."""
    while position + _8 <= end:
        block = load_8_bytes(data, position)
        before = _find_bytes_before_space(block)
        if before == _ALL:
            position += _8
            continue
        position += count_bits(before) >> _3
        if _is_separator(data[position]):
            return position
        position += _1  # another control character
    while position < end and not _is_separator(data[position]):
        position += _1
    return position


@kernel
def _load_part(data: NDArray[np.uint8], position: np.uint64, end: np.uint64) -> np.uint64:
    """Return the bytes from `position` to `end`, at most eight of them, as one number."""
    if position >= end:
        return _0
    if position + _8 <= np.uint64(len(data)):
        block = load_8_bytes(data, position)
        size = end - position
        return block if size >= _8 else block & ((_1 << (size * _8)) - _1)
    block, shift = _0, _0
    while position < end:
        block |= np.uint64(data[position]) << shift
        shift += _8
        position += _1
    return block


@kernel
def _find_word_row(
    letters: NDArray[np.uint32],
    size: int,
    hashed: np.uint32,
    table: NDArray[np.int32],
    words: NDArray[np.uint8],
    word_ends: NDArray[np.int64],
) -> int:
    """Find the row of a whole word; -1 if the model does not have it. `letters` are those of `<word>`."""
    mask = len(table) - 1
    slot = np.int64(hashed) & mask
    while table[slot] >= 0:
        row = table[slot]
        first = word_ends[row - 1] if row else 0
        if word_ends[row] - first == size:
            same = True
            for offset in range(size):
                same &= words[first + offset] == letters[offset + 1] & 0xFF
            if same:
                return int(row)
        slot = (slot + 1) & mask
    return -1


@kernel
def _hash_pieces(letters: NDArray[np.uint32], size: int, all_bits: np.uint32, hashes: NDArray[np.uint32]) -> int:
    """Hash the pieces of `<word>`, whose letters are `size` bytes; returns how many there are.

    `all_bits` are the bits of all letters. Pieces have 2 to 4 characters: `<the>` has `<t`, `<th`, `<the`, `th`, `the`,
    `the>`, `he`, `he>` and `e>`.
    """
    if all_bits < 128:
        # Piece after piece would wait for each multiplication; length after length, eight are done at a time.
        longer, longest = max(size - 2, 0), max(size - 3, 0)
        for first in range(size - 1):
            hashed = np.uint32((_START ^ letters[first]) * _PRIME)
            hashes[first] = np.uint32((hashed ^ letters[first + 1]) * _PRIME)
        for first in range(longer):
            hashes[size - 1 + first] = np.uint32((hashes[first] ^ letters[first + 2]) * _PRIME)
        for first in range(longest):
            hashes[size - 1 + longer + first] = np.uint32((hashes[size - 1 + first] ^ letters[first + 3]) * _PRIME)
        return size - 1 + longer + longest
    count = 0
    for first in range(size):
        if (letters[first] & 0xC0) == 0x80:
            continue
        hashed = _START
        position = first
        for length in range(1, 5):
            if position >= size:
                break
            while True:
                hashed = np.uint32((hashed ^ letters[position]) * _PRIME)
                position += 1
                if not (position < size and (letters[position] & 0xC0) == 0x80):
                    break
            hashes[count] = hashed
            count += length > 1
    return count


@kernel
def _find_buckets(
    hashes: NDArray[np.uint32], num_buckets: int, subword_bits: NDArray[np.uint64], buckets: NDArray[np.uint32]
) -> Any:
    """Write the buckets of pieces that have a vector; returns how many do. A jump for each piece would cost more."""
    divisor = np.uint64(num_buckets)
    inverse = np.uint64((1 << 52) // num_buckets + 1)
    count = _0
    for piece in range(len(hashes)):
        # Compute `hashed % divisor` without a division; `inverse` is 2^52 / divisor, rounded up.
        value = np.uint64(hashes[piece])
        product = ((value * inverse) >> np.uint64(52)) * divisor
        bucket = value - product if product <= value else value + divisor - product
        buckets[count] = bucket
        count += (subword_bits[bucket >> _6] >> (bucket & _63)) & _1
    return np.int64(count)


@kernel
def _add_vectors(
    buckets: NDArray[np.uint32],
    subword_bits: NDArray[np.uint64],
    subword_ranks: NDArray[np.uint16],
    first_row: np.uint64,
    vectors: NDArray[np.int32],
    total: NDArray[np.int64],
) -> None:
    """Add up the vectors of pieces. The row of a bucket is the number of bits that are set before its own."""
    for piece in range(len(buckets)):
        bucket = np.uint64(buckets[piece])
        before = subword_bits[bucket >> _6] & ((_1 << (bucket & _63)) - _1)
        row = first_row + np.uint64(subword_ranks[bucket >> _6]) + count_bits(before)
        for column in range(len(total)):  # a constant number would be unrolled instead of vectorized
            total[column] += vectors[row, column]


@kernel
def _add_word(
    data: NDArray[np.uint8],
    start: np.uint64,
    end: np.uint64,
    table: NDArray[np.int32],
    words: NDArray[np.uint8],
    word_ends: NDArray[np.int64],
    num_buckets: int,
    subword_bits: NDArray[np.uint64],
    subword_ranks: NDArray[np.uint16],
    vectors: NDArray[np.int32],
    letters: NDArray[np.uint32],
    hashes: NDArray[np.uint32],
    buckets: NDArray[np.uint32],
    total: NDArray[np.int64],
) -> Any:
    """Write the sum of the vectors of a word and its pieces to `total`; returns how many there are."""
    size: Any = np.int64(end - start) + 2
    letters[0] = _BEGIN
    hashed = _START
    all_bits = np.uint32(0)
    for offset in range(size - 2):
        # fastText takes bytes as signed numbers.
        letter = np.uint32(np.int8(data[start + np.uint64(offset)]))
        letters[offset + 1] = letter
        hashed = np.uint32((hashed ^ letter) * _PRIME)
        all_bits |= letter
    letters[size - 1] = _END
    total[:] = 0
    count = 0
    row = _find_word_row(letters, size - 2, hashed, table, words, word_ends)
    if row >= 0:
        count = 1
        for column in range(len(total)):
            total[column] = vectors[row, column]
    num_pieces = _hash_pieces(letters, size, all_bits, hashes)
    num_found = _find_buckets(hashes[:num_pieces], num_buckets, subword_bits, buckets)
    _add_vectors(buckets[:num_found], subword_bits, subword_ranks, np.uint64(len(word_ends)), vectors, total)
    return count + num_found


@kernel
def _fits(total: NDArray[np.int64]) -> Any:
    """Whether a sum can be kept in 32 bits."""
    lowest: Any = np.int64(0)
    highest: Any = np.int64(0)
    for number in total:
        lowest, highest = min(lowest, number), max(highest, number)
    return lowest >= _MIN_SUM and highest <= _MAX_SUM


@kernel
def _cut_words(
    data: NDArray[np.uint8],
    position: np.uint64,
    end: np.uint64,
    mask: np.uint64,
    keys: NDArray[np.uint64],
    slots: NDArray[np.uint64],
) -> tuple[np.uint64, int]:
    """Note the next words: their bytes, where they begin and end, and their slots in the cache.

    Returns where it has stopped, and the number of words. Words are noted before any is looked up, so that their loads
    from the cache do not wait for each other. The bytes of a word that is too long to be cached are 0.
    """
    count: Any = 0
    while count < len(slots) and position < end:
        if position + _16 <= end:
            # A word of less than 16 bytes, without a jump that depends on its length.
            first, second = load_8_bytes(data, position), load_8_bytes(data, position + _8)
            in_first, in_second = _find_bytes_before_space(first), _find_bytes_before_space(second)
            second &= in_second & (_0 if in_first != _ALL else _ALL)
            size = (count_bits(in_first) + (_0 if in_first != _ALL else count_bits(in_second))) >> _3
            if size < _16 and _is_separator(data[position + size]):
                first &= in_first
                mixed = first * _SPREAD_1 ^ second * _SPREAD_2
                slots[count] = ((mixed ^ (mixed >> _32)) * _SPREAD_1 >> _32) & mask & ~_1
                keys[count, 0], keys[count, 1], keys[count, 2] = first, second, _0
                keys[count, _WORD_START], keys[count, _WORD_END] = position, position + size
                count += size > _0
                position += size + _1
                continue
        if _is_separator(data[position]):
            position += _1
            continue
        start = position
        position = _find_word_end(data, start, end)
        first = second = third = _0
        if position - start <= _MAX_KNOWN:
            first = _load_part(data, start, position)
            if position - start > _8:
                second = _load_part(data, start + _8, position)
                third = _load_part(data, start + np.uint64(16), position)
        mixed = first * _SPREAD_1 ^ second * _SPREAD_2 ^ third * _SPREAD_3
        slots[count] = ((mixed ^ (mixed >> _32)) * _SPREAD_1 >> _32) & mask & ~_1
        keys[count, 0], keys[count, 1], keys[count, 2] = first, second, third
        keys[count, _WORD_START], keys[count, _WORD_END] = start, position
        count += 1
    return position, count


@kernel
def _touch_entries(known_words: NDArray[np.uint64], slots: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
    """Load the entries of some words: nothing waits for them here, so that many loads are on their way at a time."""
    last = np.uint64(known_words.shape[1] - 1)
    for number in range(len(slots)):
        keys[number, _TOUCHED] = known_words[slots[number], 0] ^ known_words[slots[number], last]


@kernel
def add_texts(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    owners: NDArray[np.int64],
    table: NDArray[np.int32],
    words: NDArray[np.uint8],
    word_ends: NDArray[np.int64],
    num_buckets: int,
    subword_bits: NDArray[np.uint64],
    subword_ranks: NDArray[np.uint16],
    vectors: NDArray[np.int32],
    known_words: NDArray[np.uint64],
    known_sums: NDArray[np.int32],
    keys: NDArray[np.uint64],
    slots: NDArray[np.uint64],
    letters: NDArray[np.uint32],
    hashes: NDArray[np.uint32],
    buckets: NDArray[np.uint32],
    total: NDArray[np.int64],
    sums: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Add up the words from `begins` to `ends` of each piece of text, for the document (`owners`) that has it.

    `known_words` and `known_sums` are the cache: the bytes of a word and its number of vectors, and their sum. Their
    length is a power of two. `letters` and `rows` are scratch memory for the longest piece of text and `max_subword`
    times that.
    """
    # Rows of arrays are not taken as separate arrays here: counting references to them costs more than the rest.
    for piece in range(len(begins)):
        position, end = np.uint64(begins[piece]), np.uint64(ends[piece])
        owner = owners[piece]
        num_vectors: Any = 0
        while position < end:
            position, num_words = _cut_words(data, position, end, np.uint64(len(known_words) - 1), keys, slots)
            _touch_entries(known_words, slots[:num_words], keys)
            for number in range(num_words):
                slot = slots[number]
                first, second, third = keys[number, 0], keys[number, 1], keys[number, 2]
                is_known = (
                    known_words[slot, 0] == first and known_words[slot, 1] == second and known_words[slot, 2] == third
                )
                if first and not is_known:
                    # The other slot is for new words. One that occurs again changes places with the first, so that
                    # words that occur only once do not push out frequent ones.
                    other = slot + _1
                    is_known = (
                        known_words[other, 0] == first
                        and known_words[other, 1] == second
                        and known_words[other, 2] == third
                    )
                    if is_known:
                        for column in range(known_words.shape[1]):
                            known_words[slot, column], known_words[other, column] = (
                                known_words[other, column],
                                known_words[slot, column],
                            )
                    else:
                        slot = other
                if first and is_known:
                    for column in range(sums.shape[1]):
                        sums[owner, column] += known_sums[slot, _KEY_COLUMNS + column]
                    num_vectors += np.int64(known_words[slot, _COUNT])
                    continue
                num_added = _add_word(
                    data, keys[number, _WORD_START], keys[number, _WORD_END], table, words, word_ends, num_buckets,
                    subword_bits, subword_ranks, vectors, letters, hashes, buckets, total,
                )  # fmt: skip
                for column in range(sums.shape[1]):
                    sums[owner, column] += total[column]
                num_vectors += num_added
                if first and _fits(total):
                    known_words[slot, 0] = first
                    known_words[slot, 1] = second
                    known_words[slot, 2] = third
                    known_words[slot, _COUNT] = num_added
                    for column in range(sums.shape[1]):
                        known_sums[slot, _KEY_COLUMNS + column] = total[column]
        counts[owner] += num_vectors


_SMALL = 1e-5
_DEEPER = 1e-3
"""More than `log(1 + _SMALL)` for each step down the tree: by this much a leaf may be likelier than a node above it."""


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


@kernel
def find_ascii_letters(data: NDArray[np.uint8], offsets: NDArray[np.int64], has_letter: NDArray[np.bool_]) -> None:
    """For each text whether it has an ASCII letter."""
    for text in range(len(offsets) - 1):
        for position in range(offsets[text], offsets[text + 1]):
            if 0x61 <= data[position] | 0x20 <= 0x7A:
                has_letter[text] = True
                break
