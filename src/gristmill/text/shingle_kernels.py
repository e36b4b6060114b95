"""The loops over text: words, shingles, MinHash. One pass over the UTF-8 bytes, without an allocation per word.

A word is hashed to 64 bits character by character: each is xored in and multiplied, and the word is mixed at its end.
Nothing cheaper will do: with rotations alone, words that differ in two letters can collide. A shingle is a polynomial
of the hashes of `ngram` consecutive words, rolled on with one multiplication:

    words    a b c d    with ngram 2 and base B
    shingles a*B+b, then (a*B+b)*B + c - a*B² = b*B+c, then c*B+d

Each shingle goes through all permutations `a*x` (mod 2^32, a odd): in registers of 256 bits eight at a time, with eight
shingles for each load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import inlined_kernel, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ALONE = np.uint32(1 << 31)
_IGNORED = np.uint32(1)
_START = np.uint64(0xCBF29CE484222325)
_LETTER = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_BASE = np.uint64(0x9E3779B97F4A7C13)
_MIN_HALVES = np.uint64(96)
"""How many bytes of ASCII are worth being read at two places."""
_0 = np.uint64(0)
_1 = np.uint64(1)
_3 = np.uint64(3)
_7 = np.uint64(7)
_8 = np.uint64(8)
_33 = np.uint64(33)
_32 = np.uint64(32)


@kernel
def _mix(value: np.uint64) -> np.uint64:
    value ^= value >> _33
    value *= _MIX_1
    value ^= value >> _33
    value *= _MIX_2
    return value ^ (value >> _33)


@kernel
def _gather(hashed: np.uint64, folded: np.uint64) -> np.uint64:
    """Add one character to the hash of a word."""
    return (hashed ^ folded) * _LETTER


@kernel
def _decode_character(data: NDArray[np.uint8], position: Any, stop: int) -> tuple[Any, Any]:
    """Decode a character of more than one byte, and find where the next one begins. The bytes are valid UTF-8."""
    first = np.int64(data[position])
    if first < 0xE0 or position + 2 >= stop:
        second = np.int64(data[position + 1]) if position + 1 < stop else 0
        return (first & 0x1F) << 6 | (second & 0x3F), position + 2
    if first < 0xF0 or position + 3 >= stop:
        return (first & 0x0F) << 12 | (np.int64(data[position + 1]) & 0x3F) << 6 | (
            np.int64(data[position + 2]) & 0x3F
        ), position + 3
    return (first & 0x07) << 18 | (np.int64(data[position + 1]) & 0x3F) << 12 | (
        np.int64(data[position + 2]) & 0x3F
    ) << 6 | (np.int64(data[position + 3]) & 0x3F), position + 4


@kernel
def _find_non_ascii(data: NDArray[np.uint8], position: np.uint64, last: np.uint64) -> np.uint64:
    """Return where the next character of more than one byte begins; `last` if there is none."""
    while position + _8 <= last:
        together = data[position]
        for offset in range(1, 8):
            together |= data[position + np.uint64(offset)]
        if together >= 128:
            break
        position += _8
    while position < last and data[position] < 128:
        position += _1
    return position


@kernel
def _find_gap(data: NDArray[np.uint8], position: np.uint64, end: np.uint64, table: NDArray[np.uint32]) -> np.uint64:
    while position < end and table[data[position]] != 0:
        position += _1
    return position


@inlined_kernel
def _read_byte(
    folded: np.uint64, hashed: np.uint64, inside: np.uint64, count: np.uint64, words: NDArray[np.uint64]
) -> tuple[Any, Any, Any]:
    """Read a character of ASCII without a jump, which is five times as fast: `count` grows by 0 or 1."""
    is_letter = np.uint64(folded != _0)
    words[count] = hashed
    return (hashed ^ folded) * _LETTER if is_letter else _START, is_letter, count + (inside & ~is_letter)


@kernel
def hash_words(
    data: NDArray[np.uint8], start: int, stop: int, table: NDArray[np.uint32], words: NDArray[np.uint64], num_words: int
) -> tuple[Any, Any]:
    """Write the hashes of the next words after the first `num_words`, until the text or the array ends.

    Returns where it has stopped, always after a word, and the number of words. A byte has to wait for the hash of the
    one before it, so ASCII is read at two places at a time, from the beginning and from a gap in the middle. Three
    places need more registers than there are. Positions are unsigned, because a signed index is first tested for being
    negative.
    """
    hashed, inside = _START, _0
    position, last, count = np.uint64(start), np.uint64(stop), np.uint64(num_words)
    room = np.uint64(len(words) - 2)
    ascii_end = position
    while position < last and count < room:
        if position >= ascii_end:
            ascii_end = _find_non_ascii(data, position, last)
        end = min(ascii_end, position + (room - count))  # a byte ends at most one word
        middle = end
        if end - position >= _MIN_HALVES:
            middle = _find_gap(data, position + ((end - position) >> _1), end, table)
        if middle < end:
            # The words of the second half go after the room for those of the first, and are moved then.
            first_of_second = second_count = count + (middle - position)
            second_position, second_hashed, second_inside = middle, _START, _0
            for _ in range(min(middle - position, end - middle)):
                folded, second_folded = np.uint64(table[data[position]]), np.uint64(table[data[second_position]])
                hashed, inside, count = _read_byte(folded, hashed, inside, count, words)
                second_hashed, second_inside, second_count = _read_byte(
                    second_folded, second_hashed, second_inside, second_count, words
                )
                position += _1
                second_position += _1
            while position < middle:
                hashed, inside, count = _read_byte(np.uint64(table[data[position]]), hashed, inside, count, words)
                position += _1
            while second_position < end:
                second_hashed, second_inside, second_count = _read_byte(
                    np.uint64(table[data[second_position]]), second_hashed, second_inside, second_count, words
                )
                second_position += _1
            words[count] = hashed  # a word that ends at the gap
            count += inside
            for index in range(first_of_second, second_count):
                words[count] = words[index]
                count += _1
            hashed, inside, position = second_hashed, second_inside, end
        while position < end:
            hashed, inside, count = _read_byte(np.uint64(table[data[position]]), hashed, inside, count, words)
            position += _1
        if position < ascii_end or position >= last or count >= room:
            continue
        code, after = _decode_character(data, np.int64(position), stop)
        position = np.uint64(after)
        entry = table[code] if code < len(table) else _IGNORED
        if entry == _IGNORED:
            continue
        if entry == 0 or entry & _ALONE:
            words[count] = hashed
            count += inside
            hashed, inside = _START, _0
            if entry:
                words[count] = _gather(_START, np.uint64(entry))
                count += _1
        else:
            hashed, inside = _gather(hashed, np.uint64(entry)), _1
    words[count] = hashed  # a word that ends with the text; `inside` is 0 after a word, and where the array is full
    count += inside
    for index in range(num_words, np.int64(count)):
        words[index] = _mix(words[index])
    return np.int64(position), np.int64(count)


@kernel
def _roll(words: NDArray[np.uint64], count: int, ngram: int, shingles: NDArray[np.uint64]) -> None:
    """Write the shingles of `count` words: one begins with each word but the last `ngram - 1`."""
    leaving = np.uint64(1)
    rolled = np.uint64(0)
    for position in range(ngram):
        rolled = rolled * _BASE + words[position]
        leaving *= _BASE
    shingles[0] = rolled
    for position in range(ngram, count):
        rolled = rolled * _BASE + words[position] - words[position - ngram] * leaving
        shingles[position - ngram + 1] = rolled


@kernel
def _update(
    signature: NDArray[np.uint32], shingles: NDArray[np.uint32], count: int, factors: NDArray[np.uint32]
) -> None:
    """Update a signature with `count` shingles; both arrays are filled up to the next multiple of eight."""
    for first in range(0, count, 8):
        x0, x1, x2, x3 = shingles[first], shingles[first + 1], shingles[first + 2], shingles[first + 3]
        x4, x5, x6, x7 = shingles[first + 4], shingles[first + 5], shingles[first + 6], shingles[first + 7]
        for position in range(len(signature)):
            factor = factors[position]
            y0, y1 = np.uint32(factor * x0), np.uint32(factor * x1)
            y2, y3 = np.uint32(factor * x2), np.uint32(factor * x3)
            y4, y5 = np.uint32(factor * x4), np.uint32(factor * x5)
            y6, y7 = np.uint32(factor * x6), np.uint32(factor * x7)
            signature[position] = min(signature[position], y0, y1, y2, y3, y4, y5, y6, y7)


@kernel
def _move_to_front(words: NDArray[np.uint64], start: int, stop: int) -> None:
    """Like `words[: stop - start] = words[start:stop]`, which would allocate a copy."""
    for index in range(stop - start):
        words[index] = words[start + index]


@kernel
def sign_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: NDArray[np.uint32],
    ngram: int,
    factors: NDArray[np.uint32],
    words: NDArray[np.uint64],
    shingles: NDArray[np.uint64],
    short: NDArray[np.uint32],
    minima: NDArray[np.uint32],
    signatures: NDArray[np.uint32],
    counts: NDArray[np.int64],
) -> None:
    """Compute the signature and the number of shingles of each text.

    `words`, `shingles` and `short` are buffers for one block of words, several times `ngram`; `minima` is one for a
    signature, as long as `factors`. These are as many as a signature has numbers, or more: in whole vectors no number
    is left for a separate loop.
    """
    for number in range(len(offsets) - 1):
        position, stop = offsets[number], offsets[number + 1]
        num_words = total = 0
        minima[:] = 0xFFFFFFFF
        while True:
            position, num_words = hash_words(data, position, stop, table, words, num_words)
            if num_words < ngram:
                break
            _roll(words, num_words, ngram, shingles)
            num_shingles = num_words - ngram + 1
            total += num_shingles
            for index in range(num_shingles):
                short[index] = np.uint32(shingles[index] >> _32)
            # Repeat the last one up to a multiple of eight: that does not change a minimum.
            for index in range(num_shingles, num_shingles + -num_shingles % 8):
                short[index] = short[num_shingles - 1]
            _update(minima, short, num_shingles, factors)
            if position >= stop:
                break
            # The next block begins with the last words of this one, so that no shingle is lost between two blocks.
            _move_to_front(words, num_shingles, num_words)
            num_words = ngram - 1
        counts[number] = total
        for index in range(signatures.shape[1]):
            signatures[number, index] = minima[index]


@kernel
def shingle_text(
    data: NDArray[np.uint8],
    start: int,
    stop: int,
    table: NDArray[np.uint32],
    ngram: int,
    words: NDArray[np.uint64],
    shingles: NDArray[np.uint64],
) -> int:
    """Write the shingles of one text in order, with repetitions; returns their number."""
    position = start
    num_words = total = 0
    while True:
        position, num_words = hash_words(data, position, stop, table, words, num_words)
        if num_words < ngram:
            break
        num_shingles = num_words - ngram + 1
        _roll(words, num_words, ngram, shingles[total:])
        total += num_shingles
        if position >= stop:
            break
        _move_to_front(words, num_shingles, num_words)
        num_words = ngram - 1
    return total


@kernel
def shingle_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: NDArray[np.uint32],
    ngram: int,
    words: NDArray[np.uint64],
    shingles: NDArray[np.uint64],
    ends: NDArray[np.int64],
) -> None:
    """Write the shingles of all texts, one text after another; those of text t end at `ends[t]`."""
    total = 0
    for number in range(len(offsets) - 1):
        total += shingle_text(data, offsets[number], offsets[number + 1], table, ngram, words, shingles[total:])
        ends[number] = total


@kernel
def find_listed_shingles(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: NDArray[np.uint32],
    ngrams: NDArray[np.int64],
    bits: NDArray[np.uint8],
    shift: np.uint64,
    words: NDArray[np.uint64],
    shingles: NDArray[np.uint64],
    places: NDArray[np.int64],
    listed: NDArray[np.uint64],
) -> int:
    """Find the shingles of all texts that may be on a list: their bit is set in the row of `bits` of their length.

    `ngrams` has the lengths, the longest first. Of each, `places` gets the number of the text, of its first word in the
    text and of its length in `ngrams`, and `listed` the shingle. Returns how many there are, which may be more than
    there is room for: then only the first ones were written.
    """
    longest = ngrams[0]
    count = 0
    for number in range(len(offsets) - 1):
        position, stop = offsets[number], offsets[number + 1]
        num_words = first_word = 0
        while True:
            num_kept = num_words
            position, num_words = hash_words(data, position, stop, table, words, num_words)
            for kind in range(len(ngrams)):
                ngram = ngrams[kind]
                # The words that were kept from the block before: the shingles within them have been seen.
                num_known = max(num_kept - ngram + 1, 0)
                if num_words - num_known < ngram:
                    continue
                num_shingles = num_words - num_known - ngram + 1
                _roll(words[num_known:], num_words - num_known, ngram, shingles)
                for index in range(num_shingles):
                    bit = shingles[index] >> shift
                    if bits[kind, bit >> _3] >> (bit & _7) & _1:
                        if count < len(listed):
                            places[count, 0] = number
                            places[count, 1] = first_word + num_known + index
                            places[count, 2] = kind
                            listed[count] = shingles[index]
                        count += 1
            if position >= stop:
                break
            num_left = min(longest - 1, num_words)
            words[:num_left] = words[num_words - num_left : num_words]
            first_word += num_words - num_left
            num_words = num_left
    return count


@kernel
def hash_runs(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: NDArray[np.uint32],
    length: int,
    words: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
    places: NDArray[np.uint32],
) -> int:
    """Hash every run of `length` words of each text to 128 bits, with the text's number and that of its first word.

    Two polynomials over the words with other bases: runs that are different for one of them stay different. Returns
    how many runs there are.
    """
    leaving_1 = leaving_2 = np.uint64(1)
    for _ in range(length):
        leaving_1 *= _BASE
        leaving_2 *= _LETTER
    count = 0
    for number in range(len(offsets) - 1):
        position, stop = offsets[number], offsets[number + 1]
        num_words = first_word = 0
        while True:
            position, num_words = hash_words(data, position, stop, table, words, num_words)
            if num_words >= length:
                high = low = _0
                for index in range(num_words):
                    high = high * _BASE + words[index]
                    low = low * _LETTER + words[index]
                    if index >= length:
                        high -= words[index - length] * leaving_1
                        low -= words[index - length] * leaving_2
                    if index >= length - 1:
                        hashes[count, 0] = _mix(high)
                        hashes[count, 1] = _mix(low)
                        places[count, 0] = number
                        places[count, 1] = first_word + index - length + 1
                        count += 1
            if position >= stop:
                break
            num_left = min(length - 1, num_words)
            words[:num_left] = words[num_words - num_left : num_words]
            first_word += num_words - num_left
            num_words = num_left
    return count


@kernel
def hash_bands(signatures: NDArray[np.uint32], num_bands: int, keys: NDArray[np.uint64]) -> None:
    """Compute a key for each band of each signature. Equal bands with other numbers have other keys."""
    num_rows = signatures.shape[1] // num_bands
    for number in range(signatures.shape[0]):
        for band in range(num_bands):
            hashed = np.uint64(band + 1) * _BASE
            for row in range(num_rows):
                hashed = _mix(hashed ^ np.uint64(signatures[number, band * num_rows + row])) + _BASE
            keys[number, band] = hashed
