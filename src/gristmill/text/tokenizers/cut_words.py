"""Compiled loops of the word cache: cut texts into added tokens and words, encode new words, copy the ids of all.

A word ends where two bytes meet that no token has side by side: `The cat` is `The` and ` cat`. Texts are looked at as
bytes. Where a tokenizer puts a mark before a piece of text, its first word has one more space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


NUM_WORDS, NUM_BYTES = range(2)
"""The counts of a cache: its words, and the bytes of them."""
WORD_START, WORD_END = range(2)
NO_TOKEN = -2

_SPACE = np.uint8(32)
_MAX_CACHED_BYTES = 256
"""Longer words are seldom seen again. They are encoded each time, by the engine, which is loaded for the first one."""
_MAX_WORD_BYTES = 1024
_FIRST_HASH = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)


@kernel
def _find_added_token(
    data: NDArray[np.uint8],
    position: int,
    stop: int,
    token_data: NDArray[np.uint8],
    token_offsets: NDArray[np.int64],
    first_tokens: NDArray[np.int64],
    single_tokens: NDArray[np.int64],
) -> int:
    """Find the longest added token at a position; -1 if there is none.

    `first_tokens` tells which tokens begin with two bytes, the longest first: Gemma 3 has 6,300 that begin with `<`.
    `single_tokens` has the token of one byte, -1 for none, -2 if no token at all begins with the byte.
    """
    first = data[position]
    single = single_tokens[first]
    if single == NO_TOKEN or position + 1 >= stop:
        return int(max(single, -1))
    pair = np.int64(first) << 8 | np.int64(data[position + 1])
    for token in range(first_tokens[pair], first_tokens[pair + 1]):
        start, size = token_offsets[token], token_offsets[token + 1] - token_offsets[token]
        if position + size <= stop:
            is_equal = True
            for offset in range(2, size):
                if data[position + offset] != token_data[start + offset]:
                    is_equal = False
                    break
            if is_equal:
                return token
    return int(single)


@kernel
def _is_word(
    data: NDArray[np.uint8], begin: int, end: int, prefix: int, pool: NDArray[np.uint8], start: int, stop: int
) -> bool:
    """Tell whether a word of a text, with `prefix` spaces before it, is a word of the pool."""
    if stop - start != end - begin + prefix or (prefix and pool[start] != _SPACE):
        return False
    for offset in range(end - begin):  # noqa: SIM110  (a generator would not compile)
        if pool[start + prefix + offset] != data[begin + offset]:
            return False
    return True


@kernel
def cut_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first_row: int,
    prefix: int,
    joins: NDArray[np.bool_],
    token_data: NDArray[np.uint8],
    token_offsets: NDArray[np.int64],
    first_tokens: NDArray[np.int64],
    single_tokens: NDArray[np.int64],
    slots: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    words: NDArray[np.int64],
    pool: NDArray[np.uint8],
    counts: NDArray[np.int64],
    items: NDArray[np.int32],
    item_offsets: NDArray[np.int64],
    is_refused: NDArray[np.bool_],
) -> int:
    """Cut texts from `first_row` on into items: the numbers of words, and -1 - n for the added token n.

    New words get a number and are copied into the pool. Returns the first row for which there is no more room. A text
    that holds a mark or a word that the engine cannot encode alone is refused.
    """
    num_items = item_offsets[first_row]
    mask = len(slots) - 1
    for row in range(first_row, len(offsets) - 1):
        position, stop = offsets[row], offsets[row + 1]
        pending = prefix
        while position < stop and not is_refused[row]:
            token = _find_added_token(data, position, stop, token_data, token_offsets, first_tokens, single_tokens)
            if token >= 0:
                items[num_items] = -1 - token
                num_items += 1
                position += token_offsets[token + 1] - token_offsets[token]
                pending = prefix
                continue
            begin = position
            hashed = _FIRST_HASH
            if pending:
                hashed = (hashed ^ np.uint64(_SPACE)) * _PRIME
            before = _SPACE
            while position < stop:
                byte = data[position]
                # A word is never cut within a character: bytes from 0x80 to 0xBF continue one.
                if (position > begin or pending) and not joins[before, byte] and byte & 0xC0 != 0x80:
                    break
                if (
                    position > begin
                    and single_tokens[byte] != NO_TOKEN
                    and _find_added_token(data, position, stop, token_data, token_offsets, first_tokens, single_tokens)
                    >= 0
                ):
                    break
                if byte == 0xE2 and data[position + 1] == 0x96 and data[position + 2] == 0x81:
                    is_refused[row] = True
                    break
                hashed = (hashed ^ np.uint64(byte)) * _PRIME
                before = byte
                position += 1
            size = position - begin + pending
            # The engine, which encodes long words, puts a mark before them where it does so at all.
            has_no_mark = prefix and not pending and data[begin] != _SPACE
            if size > _MAX_WORD_BYTES or (size > _MAX_CACHED_BYTES and has_no_mark):
                is_refused[row] = True
            if is_refused[row]:
                break
            slot = np.int64(hashed ^ (hashed >> np.uint64(29))) & mask
            number = -1
            if size <= _MAX_CACHED_BYTES:
                while slots[slot] >= 0:
                    known = slots[slot]
                    if hashes[known] == hashed and _is_word(
                        data, begin, position, pending, pool, words[known, WORD_START], words[known, WORD_END]
                    ):
                        number = known
                        break
                    slot = (slot + 1) & mask
            if number < 0:
                number = counts[NUM_WORDS]
                start = counts[NUM_BYTES]
                if number == len(hashes) or start + size > len(pool):
                    return row
                if pending:
                    pool[start] = _SPACE
                pool[start + pending : start + size] = data[begin:position]
                words[number, WORD_START] = start
                words[number, WORD_END] = start + size
                hashes[number] = hashed
                if size <= _MAX_CACHED_BYTES:
                    slots[slot] = number
                counts[NUM_WORDS] += 1
                counts[NUM_BYTES] += size
            items[num_items] = number
            num_items += 1
            pending = 0
        if is_refused[row]:
            num_items = item_offsets[row]
        item_offsets[row + 1] = num_items
    return len(offsets) - 1


@kernel
def _hash_pair(left: int, right: int) -> int:
    mixed = left * 0x9E3779B1 + right * 0x85EBCA77
    return mixed ^ (mixed >> 15)


@kernel
def fill_pairs(
    lefts: NDArray[np.int64],
    rights: NDArray[np.int64],
    merged: NDArray[np.int64],
    pair_keys: NDArray[np.int64],
    pair_values: NDArray[np.int64],
) -> None:
    """Fill the table of merges, by the two ids: rank and new id. Of two equal pairs the later one counts."""
    mask = len(pair_keys) - 1
    for rank in range(len(lefts)):
        key = lefts[rank] << 32 | rights[rank]
        slot = _hash_pair(lefts[rank], rights[rank]) & mask
        while pair_keys[slot] >= 0 and pair_keys[slot] != key:
            slot = (slot + 1) & mask
        pair_keys[slot] = key
        pair_values[slot] = rank << 32 | merged[rank]


@kernel
def _find_merge(left: int, right: int, pair_keys: NDArray[np.int64], pair_values: NDArray[np.int64]) -> int:
    """Find rank and new id of a pair, as `rank << 32 | id`; -1 if it is not merged."""
    mask = len(pair_keys) - 1
    key = left << 32 | right
    slot = _hash_pair(left, right) & mask
    while pair_keys[slot] >= 0:
        if pair_keys[slot] == key:
            return int(pair_values[slot])
        slot = (slot + 1) & mask
    return -1


@kernel
def _spell_word(
    pool: NDArray[np.uint8],
    start: int,
    stop: int,
    char_ids: NDArray[np.int64],
    byte_ids: NDArray[np.int64],
    symbols: NDArray[np.int64],
) -> int:
    """Write the ids of a word's characters, or of the bytes of those that have none; returns their number."""
    position, count = start, 0
    while position < stop:
        first = pool[position]
        size = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        code = np.int64(first) if size == 1 else np.int64(first & (0xFF >> (size + 1)))
        for offset in range(1, size):
            code = code << 6 | np.int64(pool[position + offset] & 63)
        if code < len(char_ids) and char_ids[code] >= 0:
            symbols[count] = char_ids[code]
            count += 1
        else:
            for offset in range(size):
                symbols[count] = byte_ids[pool[position + offset]]
                count += 1
        position += size
    return count


@kernel
def encode_words(
    first: int,
    stop: int,
    words: NDArray[np.int64],
    pool: NDArray[np.uint8],
    char_ids: NDArray[np.int64],
    byte_ids: NDArray[np.int64],
    pair_keys: NDArray[np.int64],
    pair_values: NDArray[np.int64],
    symbols: NDArray[np.int64],
    merges: NDArray[np.int64],
    word_ids: NDArray[np.uint32],
    id_offsets: NDArray[np.int64],
) -> int:
    """Encode words of the pool by merging the pair of lowest rank, the leftmost of equal ones, until none is left.

    Returns the number of the first word that is too long for that, or `stop`. O(n²) for n characters, at most 256.
    """
    for word in range(first, stop):
        start, end = words[word, WORD_START], words[word, WORD_END]
        if end - start > _MAX_CACHED_BYTES:
            return word
        count = _spell_word(pool, start, end, char_ids, byte_ids, symbols)
        for index in range(count - 1):
            merges[index] = _find_merge(symbols[index], symbols[index + 1], pair_keys, pair_values)
        while True:
            best = -1
            for index in range(count - 1):
                if merges[index] >= 0 and (best < 0 or merges[index] < merges[best]):
                    best = index
            if best < 0:
                break
            symbols[best] = merges[best] & 0xFFFFFFFF
            count -= 1
            for index in range(best + 1, count):
                symbols[index] = symbols[index + 1]
                merges[index - 1] = merges[index]
            if best > 0:
                merges[best - 1] = _find_merge(symbols[best - 1], symbols[best], pair_keys, pair_values)
            if best + 1 < count:
                merges[best] = _find_merge(symbols[best], symbols[best + 1], pair_keys, pair_values)
        begin = id_offsets[word]
        for index in range(count):
            word_ids[begin + index] = symbols[index]
        id_offsets[word + 1] = begin + count
    return stop


@kernel
def count_ids(
    items: NDArray[np.int32],
    item_offsets: NDArray[np.int64],
    first_row: int,
    last_row: int,
    id_offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> None:
    """Count the ids of texts; `id_offsets` tell where the ids of each word begin and end."""
    for row in range(first_row, last_row):
        total = 0
        for item in range(item_offsets[row], item_offsets[row + 1]):
            number = items[item]
            total += 1 if number < 0 else id_offsets[number + 1] - id_offsets[number]
        lengths[row] = total


@kernel
def copy_ids(
    items: NDArray[np.int32],
    item_offsets: NDArray[np.int64],
    first_row: int,
    last_row: int,
    word_ids: NDArray[np.uint32],
    id_offsets: NDArray[np.int64],
    token_ids: NDArray[np.uint32],
    ids: NDArray[np.uint32],
) -> None:
    """Copy the ids of texts, one after the other."""
    position = 0
    for item in range(item_offsets[first_row], item_offsets[last_row]):
        number = items[item]
        if number < 0:
            ids[position] = token_ids[-1 - number]
            position += 1
        else:
            for index in range(id_offsets[number], id_offsets[number + 1]):
                ids[position] = word_ids[index]
                position += 1
