"""The pass over the text itself: it counts characters, words and lines, and notes where they are for other passes.

A word is a run of characters without space. In scripts that are written without spaces (Han, Kana, Thai, …) each
letter begins a new word, and the punctuation behind a letter belongs to its word, as in English. The share of a word
of other scripts that it stands for is noted for counting runs of words (`repeated_words`). A line is the text between
line feeds, without the space at its ends; blank lines do not count. Paragraphs are separated by blank lines.

Each character is looked at once, in about 4 ns. Words are hashed by FNV-1a over their code points, restarted at the
first letter or digit: so the hash of "don't" in "(don't)" is a by-product, to be looked up among the stop words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel

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
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _decode_code_point(data: NDArray[np.uint8], position: int, end: int) -> tuple[Any, int]:
    """Return the code point at a place and its number of bytes. Bytes that are not UTF-8 give any code point."""
    byte = np.int64(data[position])
    if byte < 0x80:
        return byte, 1
    if byte >= 0xF0 and position + 3 < end:
        low = ((data[position + 1] & 0x3F) << 12) | ((data[position + 2] & 0x3F) << 6) | (data[position + 3] & 0x3F)
        return ((byte & 0x07) << 18) | low, 4
    if byte >= 0xE0 and position + 2 < end:
        return ((byte & 0x0F) << 12) | ((data[position + 1] & 0x3F) << 6) | (data[position + 2] & 0x3F), 3
    if byte >= 0xC0 and position + 1 < end:
        return ((byte & 0x1F) << 6) | (data[position + 1] & 0x3F), 2
    return 0xFFFD, 1


@kernel
def _classify(classes: NDArray[np.uint16], code: int) -> Any:
    return np.int64(classes[code]) if code < len(classes) else 0


@kernel
def _find_stop_word(keys: NDArray[np.uint64], hashed: np.uint64) -> Any:
    """Return the slot of a word in the table of its list, or -1. Empty slots are 0, and there always are some."""
    mask = len(keys) - 1
    slot = np.int64((hashed * _SPREAD) >> np.uint64(32)) & mask
    while keys[slot] != 0:
        if keys[slot] == hashed:
            return slot
        slot = (slot + 1) & mask
    return -1


@kernel
def scan_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: int,
    classes: NDArray[np.uint16],
    stop_keys: NDArray[np.uint64],
    stop_numbers: NDArray[np.int64],
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
    noted. `stop_list` names the row of `stop_keys` for each document, -1 for none; the forms of a stop word share a
    number in `stop_numbers`, and `stop_seen[number]` is the last document that has the word.

    One long function, because a call for each character or word would cost more than the work in it.
    """
    num_words_kept = num_lines_kept = 0
    for document in range(first, len(offsets) - 1):
        start, end = offsets[document], offsets[document + 1]
        # A word and the space behind it take at least two bytes; a letter of a script without spaces takes three.
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
        last_code = 0
        while True:
            while position < end:
                code, size = _decode_code_point(data, position, end)
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
                bullets += (_classify(classes, _decode_code_point(data, line_start, end)[0]) & _BULLET) != 0
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
            length = kinds = last_kind = 0
            has_hash = has_ellipsis = False
            hashed, before, core = _SEED, np.uint64(0), np.uint64(0)
            while position < end:
                code, size = _decode_code_point(data, position, end)
                kind = _classify(classes, code)
                if kind & _LETTER_OR_DIGIT:
                    if last_kind:
                        if (kind | last_kind) & _SPACELESS:
                            break
                    else:  # the first letter: what came before it is hashed apart, so that `core` begins here
                        before, hashed = hashed, _SEED
                    last_kind = kind
                    kinds |= kind
                    letters += (kind >> 1) & 1
                    digits += (kind >> 2) & 1
                    capitals += (kind >> 3) & 1
                    hashed = core = (hashed ^ np.uint64(code)) * _PRIME
                elif kind & _SPACE:
                    break
                else:
                    hashed = (hashed ^ np.uint64(code)) * _PRIME
                    if kind & _MARK and last_kind:  # vowel signs and accents belong to the letter before them
                        core = hashed
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
            hashed = (hashed ^ before) * _PRIME

            num_words += 1
            line_words += 1
            word_characters += length
            line_characters += length
            line_end = position
            longest_word = max(longest_word, length)
            alphabetic += (kinds >> 1) & 1
            hash_words += has_hash
            ellipsis_words += has_ellipsis
            line_hash = (line_hash ^ hashed) * _SPREAD
            if last_kind and stop_list[document] >= 0:
                slot = _find_stop_word(stop_keys[stop_list[document]], core)
                if slot >= 0:
                    number = stop_numbers[stop_list[document], slot]
                    stop_words += stop_seen[number] != document
                    stop_seen[number] = document
            if num_words_kept < words_end:
                words[num_words_kept, WORD_START] = word_start - start
                words[num_words_kept, WORD_END] = position - start
                words[num_words_kept, WORD_CHARACTERS] = length
                words[num_words_kept, WORD_SHARE] = last_kind >> _SHARE_SHIFT or _WHOLE_WORD
                word_hashes[num_words_kept] = hashed
                num_words_kept += 1

        word_stops[document] = num_words_kept
        line_stops[document] = num_lines_kept
        row = counts[document]
        row[0] = word_characters + spaces
        row[1] = spaces
        row[2] = letters
        row[3] = digits
        row[4] = capitals
        row[5] = num_words
        row[6] = word_characters
        row[7] = longest_word
        row[8] = alphabetic
        row[9] = hash_words
        row[10] = ellipsis_words
        row[11] = stop_words
        row[12] = num_lines
        row[13] = all_line_characters
        row[14] = longest_line
        row[15] = bullets
        row[16] = ellipsis_lines
        row[17] = terminals
        row[18] = short
    return len(offsets) - 1
