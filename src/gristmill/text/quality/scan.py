"""The pass over the text itself: it counts characters, words and lines, and notes where they are for other passes.

A word is a run of characters without space. In scripts that are written without spaces (Han, Kana, Thai, …) each
letter begins a new word, and the punctuation after a letter belongs to its word, as in English. The share of a word
of other scripts that it stands for is noted for counting runs of words (`repeated_words`). A line is the text between
line feeds, without the space at its ends; blank lines do not count. Paragraphs are separated by blank lines.

Most words are plain: visible ASCII up to a space of ASCII. Their bytes are classified eight at a time, as one number,
in about 12 ns a word. All others are decoded, in about 4 ns a character.

Hashes of words are of their bytes, eight at a time; up to eight bytes, words of equal size and hash are equal. A word
without the punctuation around it ("don't" in "(don't)") is looked up among the stop words by FNV-1a over its code
points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import inlined_kernel, kernel
from gristmill.text.byte_kernels import count_bits, decode_code_point, load_8_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTERS = (
    "characters",
    "spaces",
    "letters",
    "digits",
    "capitals",
    "words",
    "word_characters",
    "longest_word",
    "alphabetic_words",
    "hash_words",
    "ellipsis_words",
    "stop_words",
    "lines",
    "line_characters",
    "longest_line",
    "bullet_lines",
    "ellipsis_lines",
    "terminal_lines",
    "short_lines",
)
"""The columns of the counts."""

MAX_NOTED = 1 << 20
"""How many words and lines of a document are noted: more are counted, but not searched for repetition."""

WORD_START, WORD_END, WORD_CHARACTERS, WORD_SHARE = range(4)
WORD_COLUMNS = 4
LINE_START, LINE_END, LINE_CHARACTERS, LINE_OPENS_PARAGRAPH = range(4)
LINE_COLUMNS = 4

_SPACE, _LETTER, _CAPITAL, _SPACELESS, _TERMINAL, _BULLET, _MARK = 1, 2, 8, 16, 32, 64, 128
_LETTER_OR_DIGIT = 6
_SHARE_SHIFT = 8
_WHOLE_WORD = 12
_LINE_FEED, _HASH, _DOT, _ELLIPSIS = 0x0A, 0x23, 0x2E, 0x2026
_SHORT_LINE = 30
_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_SPACE_HASH = np.uint64((0xCBF29CE484222325 ^ 0x20) * 0x100000001B3 % 2**64)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_0, _1, _7, _8, _32, _56 = (np.uint64(number) for number in (0, 1, 7, 8, 32, 56))
_BYTES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_CASE_BITS = np.uint64(0x2020202020202020)
_HASHES = np.uint64(0x2323232323232323)
_DOTS = np.uint64(0x2E2E2E2E2E2E2E2E)
# Added to a byte below 128, the high bit tells whether it is at least this character.
_FROM_VISIBLE, _FROM_A, _AFTER_Z, _FROM_0, _AFTER_9, _FROM_CAPITAL_A, _AFTER_CAPITAL_Z = (
    np.uint64(0x0101010101010101 * (0x80 - first)) for first in (0x21, 0x61, 0x7B, 0x30, 0x3A, 0x41, 0x5B)
)


@kernel
def _classify(classes: NDArray[np.uint16], code: int) -> Any:
    return np.int64(classes[code]) if code < len(classes) else 0


@kernel
def _find_stop_word(keys: NDArray[np.uint64], hashed: np.uint64) -> Any:
    """Return the slot of a word in the table of its list, or -1. Empty slots are 0, and there always are some."""
    mask = len(keys) - 1
    slot = np.int64((hashed * _SPREAD) >> _32) & mask
    while keys[slot] != 0:
        if keys[slot] == hashed:
            return slot
        slot = (slot + 1) & mask
    return -1


@kernel
def _load_block(data: NDArray[np.uint8], position: int, end: int) -> Any:
    """Like `load_8_bytes`, but bytes from `end` on are 0."""
    at = np.uint64(position)
    if position + 8 <= end:
        return load_8_bytes(data, at)
    block = _0
    for offset in range(end - position):
        block |= np.uint64(data[at + np.uint64(offset)]) << np.uint64(8 * offset)
    return block


@kernel
def _count_bits(bits: np.uint64) -> Any:
    return np.int64(count_bits(bits))


@kernel
def _are_set(first: np.uint64, second: np.uint64) -> Any:
    """Whether both numbers are other than 0: of two comparisons the compiler would make two jumps."""
    return np.int64((first | (~first + _1)) & (second | (~second + _1))) < 0


@kernel
def _trim(block: np.uint64, marks: np.uint64) -> np.uint64:
    """Return the bytes from the first to the last one that is marked, the first one lowest; 0 if none is."""
    before = ((marks & (~marks + _1)) >> _7) - _1
    marks |= marks >> _8
    marks |= marks >> np.uint64(16)
    marks |= marks >> _32
    return (block & ((marks >> _7) * np.uint64(0xFF))) >> np.uint64(_count_bits(before) & 56)


@kernel
def _add_block(hashed: np.uint64, block: np.uint64) -> np.uint64:
    """Add up to eight bytes to a hash. With the same hash before, other bytes give another one."""
    hashed = (hashed ^ block) * _SPREAD
    return hashed ^ (hashed >> _32)


@kernel
def _hash_bytes(data: NDArray[np.uint8], start: int, end: int) -> Any:
    hashed = _SEED
    for position in range(start, end, 8):
        hashed = _add_block(hashed, _load_block(data, position, end))
    return hashed


@kernel
def _is_visible(byte: int) -> Any:
    return np.uint8(byte - np.uint8(0x21)) < 0x5F


@kernel
def _is_ascii_space(byte: int) -> bool:
    return byte == 0x20 or 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x1F


@inlined_kernel
def _scan_plain_word(data: NDArray[np.uint8], start: int, end: int) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
    """Read visible ASCII characters from `start` on.

    Returns where they end, their hash, the numbers of letters, digits, capitals and dots, whether there is a #, and of
    the first eight the bytes from the first to the last letter or digit.
    """
    hashed, core = _SEED, _0
    letters = digits = capitals = dots = 0
    hash_marks = _0
    position = start
    while True:
        block = _load_block(data, position, end)
        stops = (~((block & _LOW_BITS) + _FROM_VISIBLE) | block) & _HIGH_BITS
        # The bits of the bytes before the first stop; all if there is none.
        before = ((stops & (~stops + _1)) >> _7) - _1
        size = _count_bits(before) >> 3
        block &= before
        if size > 0:
            hashed = _add_block(hashed, block)
            lower = block | _CASE_BITS
            is_letter = (lower + _FROM_A) & ~(lower + _AFTER_Z) & _HIGH_BITS
            is_digit = (block + _FROM_0) & ~(block + _AFTER_9) & _HIGH_BITS
            letters += _count_bits(is_letter)
            digits += _count_bits(is_digit)
            capitals += _count_bits((block + _FROM_CAPITAL_A) & ~(block + _AFTER_CAPITAL_Z) & _HIGH_BITS)
            dots += _count_bits(~((block ^ _DOTS) + _LOW_BITS) & _HIGH_BITS)
            hash_marks |= ~((block ^ _HASHES) + _LOW_BITS) & _HIGH_BITS
            if position == start:
                core = _trim(block, is_letter | is_digit)
        position += size
        if size < 8:
            return position, hashed, letters, digits, capitals, dots, hash_marks != _0, core


@kernel
def _hash_core(data: NDArray[np.uint8], start: int, end: int, classes: NDArray[np.uint16]) -> Any:
    """Hash the part of a plain word between its first and last letter or digit."""
    while not classes[data[start]] & _LETTER_OR_DIGIT:
        start += 1
    while not classes[data[end - 1]] & _LETTER_OR_DIGIT:
        end -= 1
    hashed = _SEED
    for position in range(start, end):
        hashed = (hashed ^ np.uint64(data[position])) * _PRIME
    return hashed


@kernel
def _has_three_dots(data: NDArray[np.uint8], start: int, end: int) -> bool:
    run = 0
    for position in range(start, end):
        run = run + 1 if data[position] == _DOT else 0
        if run == 3:
            return True
    return False


@kernel
def scan_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: int,
    classes: NDArray[np.uint16],
    stop_keys: NDArray[np.uint64],
    stop_numbers: NDArray[np.int64],
    stop_sizes: NDArray[np.int64],
    short_keys: NDArray[np.uint64],
    short_numbers: NDArray[np.int64],
    stop_list: NDArray[np.int64],
    stop_seen: NDArray[np.int64],
    counts: NDArray[np.int64],
    words: NDArray[np.int32],
    word_hashes: NDArray[np.uint64],
    word_stops: NDArray[np.int64],
    lines: NDArray[np.int32],
    line_hashes: NDArray[np.uint64],
    line_stops: NDArray[np.int64],
) -> int:
    """Count documents from `first` on, until the words and lines of the next one may not fit; return its number.

    Document d has bytes `offsets[d]` to `offsets[d + 1]`; places in `words` and `lines` count from its first byte, and
    its own words and lines end at `word_stops[d]` and `line_stops[d]`. With an empty array of words (lines) none are
    noted. `stop_list` names the row of the tables of stop words for each document, -1 for none; `stop_sizes` has the
    length of the longest word of each row. Words of up to eight bytes are in `short_keys`, all others in `stop_keys`.
    The forms of a stop word share a number, and `stop_seen[number]` is the last document that has the word; its last
    entry is for words that are not listed.

    One long function, because a call for each character or word would cost more than the work in it.
    """
    num_words_kept = num_lines_kept = 0
    for document in range(first, len(offsets) - 1):
        start, end, stop_row = offsets[document], offsets[document + 1], stop_list[document]
        # A word and the space after it take at least two bytes; a letter of a script without spaces takes three.
        most = min((end - start) // 2 + 1, MAX_NOTED)
        keeps_words, keeps_lines = len(words) > 0, len(lines) > 0
        if (keeps_words and num_words_kept + most > len(words)) or (keeps_lines and num_lines_kept + most > len(lines)):
            return document
        words_end = num_words_kept + most if keeps_words else 0
        lines_end = num_lines_kept + most if keeps_lines else 0
        spaces = letters = digits = capitals = 0
        num_words = word_characters = longest_word = alphabetic = hash_words = ellipsis_words = stop_words = 0
        num_lines = all_line_characters = longest_line = bullets = ellipsis_lines = terminals = short = 0
        position = start
        gap, feeds = 0, 2  # as if two line feeds came before: the first line opens a paragraph
        gap_hash = _SEED
        line_start = line_end = start
        line_words = line_characters = 0
        line_hash = _SEED
        opens_paragraph = True
        last_code: Any = 0
        while True:
            if position + 1 < end and data[np.uint64(position)] == 0x20 and _is_visible(data[np.uint64(position + 1)]):
                gap = 1
                gap_hash = _SPACE_HASH
                position += 1
            while position < end:
                if _is_visible(data[np.uint64(position)]):
                    break
                code, size = decode_code_point(data, position, end)
                if not _classify(classes, code) & _SPACE:
                    break
                gap += 1
                gap_hash = (gap_hash ^ np.uint64(code)) * _PRIME
                feeds += code == _LINE_FEED
                position += size
            if line_words and (feeds or position >= end):
                num_lines += 1
                all_line_characters += line_characters
                longest_line = max(longest_line, line_characters)
                short += line_characters <= _SHORT_LINE
                bullets += (_classify(classes, decode_code_point(data, line_start, end)[0]) & _BULLET) != 0
                terminals += (_classify(classes, last_code) & _TERMINAL) != 0
                ellipsis_lines += last_code == _ELLIPSIS or (
                    last_code == _DOT
                    and line_end - line_start >= 3
                    and data[line_end - 2] == _DOT
                    and data[line_end - 3] == _DOT
                )
                if num_lines_kept < lines_end:
                    lines[num_lines_kept, LINE_START] = line_start - start
                    lines[num_lines_kept, LINE_END] = line_end - start
                    lines[num_lines_kept, LINE_CHARACTERS] = line_characters
                    lines[num_lines_kept, LINE_OPENS_PARAGRAPH] = opens_paragraph
                    line_hashes[num_lines_kept] = line_hash
                    num_lines_kept += 1
                line_words = 0
            if position >= end:
                break
            if num_words:
                spaces += gap
            if line_words:
                line_characters += gap
                # Without the gaps, lines that differ in them alone would share a hash: searching them is quadratic.
                line_hash = (line_hash ^ gap_hash) * _SPREAD
            else:
                line_start = position
                line_characters = 0
                line_hash = _SEED
                opens_paragraph = feeds >= 2
            gap = feeds = 0
            gap_hash = _SEED

            word_start = position
            core = _0
            position, hashed, num_letters, num_digits, num_capitals, num_dots, has_hash, short_core = _scan_plain_word(
                data, word_start, end
            )
            if position == end or _is_ascii_space(data[np.uint64(position)]):
                length = position - word_start
                has_letter = num_letters > 0
                has_core = num_letters + num_digits > 0
                share = _WHOLE_WORD
                letters += num_letters
                digits += num_digits
                capitals += num_capitals
                has_ellipsis = num_dots >= 3 and _has_three_dots(data, word_start, position)
                last_code = np.int64(data[np.uint64(position - 1)])
                if stop_row >= 0:
                    if length <= 8:
                        # Without a jump: one word in four is a stop word, which no processor could predict.
                        row, mask = np.uint64(stop_row), np.uint64(short_keys.shape[1] - 1)
                        slot = ((short_core * _SPREAD) >> _32) & mask
                        key = short_keys[row, slot]
                        while _are_set(key, key ^ short_core):
                            slot = (slot + _1) & mask
                            key = short_keys[row, slot]
                        is_stop_word = has_core and key == short_core
                        number = np.uint64(short_numbers[row, slot] if is_stop_word else len(stop_seen) - 1)
                        stop_words += is_stop_word & (stop_seen[number] != document)
                        stop_seen[number] = document
                    elif has_core and num_letters + num_digits <= stop_sizes[stop_row]:
                        core = _hash_core(data, word_start, position, classes)
            else:
                position = word_start
                length = kinds = last_kind = 0
                has_hash = has_ellipsis = False
                so_far = _SEED
                while position < end:
                    code, size = decode_code_point(data, position, end)
                    kind = _classify(classes, code)
                    if kind & _LETTER_OR_DIGIT:
                        if last_kind:
                            if (kind | last_kind) & _SPACELESS:
                                break
                        else:
                            so_far = _SEED  # the core begins with the first letter
                        last_kind = kind
                        kinds |= kind
                        letters += (kind >> 1) & 1
                        digits += (kind >> 2) & 1
                        capitals += (kind >> 3) & 1
                        so_far = core = (so_far ^ np.uint64(code)) * _PRIME
                    elif kind & _SPACE:
                        break
                    else:
                        so_far = (so_far ^ np.uint64(code)) * _PRIME
                        if kind & _MARK and last_kind:  # vowel signs and accents belong to the letter before them
                            core = so_far
                        if code == _HASH:
                            has_hash = True
                        elif code == _DOT:
                            if position + 2 < end and data[position + 1] == _DOT and data[position + 2] == _DOT:
                                has_ellipsis = True
                        elif code == _ELLIPSIS:
                            has_ellipsis = True
                    last_code = code
                    length += 1
                    position += size
                has_letter = (kinds & _LETTER) != 0
                has_core = last_kind != 0
                share = last_kind >> _SHARE_SHIFT or _WHOLE_WORD
                hashed = _hash_bytes(data, word_start, position)

            num_words += 1
            line_words += 1
            word_characters += length
            line_characters += length
            line_end = position
            longest_word = max(longest_word, length)
            alphabetic += has_letter
            hash_words += has_hash
            ellipsis_words += has_ellipsis
            line_hash = (line_hash ^ hashed) * _SPREAD
            if core and stop_row >= 0:
                stop_slot = _find_stop_word(stop_keys[stop_row], core)
                if stop_slot >= 0:
                    number = np.uint64(stop_numbers[stop_row, stop_slot])
                    stop_words += stop_seen[number] != document
                    stop_seen[number] = document
            if num_words_kept < words_end:
                row_number = np.uint64(num_words_kept)
                words[row_number, WORD_START] = word_start - start
                words[row_number, WORD_END] = position - start
                words[row_number, WORD_CHARACTERS] = length
                words[row_number, WORD_SHARE] = share
                word_hashes[row_number] = hashed
                num_words_kept += 1

        word_stops[document] = num_words_kept
        line_stops[document] = num_lines_kept
        counted = counts[document]
        counted[0] = word_characters + spaces
        counted[1] = spaces
        counted[2] = letters
        counted[3] = digits
        counted[4] = capitals
        counted[5] = num_words
        counted[6] = word_characters
        counted[7] = longest_word
        counted[8] = alphabetic
        counted[9] = hash_words
        counted[10] = ellipsis_words
        counted[11] = stop_words
        counted[12] = num_lines
        counted[13] = all_line_characters
        counted[14] = longest_line
        counted[15] = bullets
        counted[16] = ellipsis_lines
        counted[17] = terminals
        counted[18] = short
    return len(offsets) - 1
