"""Lines, paragraphs and runs of words: their hashes, and texts without some of them.

A piece is hashed to 128 bits, so that of 10^12 pieces two different ones are equal with a probability of 10^-15. Lines
and paragraphs are compared byte by byte without the space around them, and their words are counted as `scan` does it;
runs of words are compared by their words as `deduplicate` sees them. One compiled pass over the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.runtime.kernels import kernel
from gristmill.steps.deduplicate.partitions import call_place
from gristmill.text.buffers import get_text_buffers
from gristmill.text.byte_kernels import decode_code_point
from gristmill.text.comparison_words import cut_spans, find_word_spans, make_character_table
from gristmill.text.minhash import BLOCK
from gristmill.text.quality.character_classes import make_character_classes
from gristmill.text.shingle_kernels import hash_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PIECE = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u4"), ("number", "<u4")])
"""A piece of a document: its hash, and its number in the text."""

LINES, PARAGRAPHS, SUBSTRING, COLUMN = "lines", "paragraphs", "substring", "column"
_SPACE = "".join(map(chr, range(33)))
_BREAKS = {LINES: re.compile(r"\n"), PARAGRAPHS: re.compile(rf"\n[{_SPACE}]*\n")}
_START_1 = np.uint64(0xCBF29CE484222325)
_START_2 = np.uint64(0x9AE16A3B2F90404F)
_PRIME_1 = np.uint64(0xD6E8FEB86659FD93)
_PRIME_2 = np.uint64(0x9FB21C651E98DF25)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_33 = np.uint64(33)
_CLASS_SPACE, _CLASS_LETTER_OR_DIGIT, _CLASS_SPACELESS = 1, 6, 16
"""Bits of `character_classes`: a kernel takes no constants from other modules."""


@kernel
def _finish(value: np.uint64) -> np.uint64:
    value ^= value >> _33
    value *= _MIX_1
    value ^= value >> _33
    value *= _MIX_2
    return value ^ (value >> _33)


@kernel
def _measure_break(data: NDArray[np.uint8], position: int, stop: int) -> int:
    """Count the bytes from a newline through the last one of the blank lines after it; 0 if there are none."""
    size = 0
    after = position + 1
    while after < stop and data[after] <= 32:
        if data[after] == 10:
            size = after + 1 - position
        after += 1
    return size


@kernel
def _hash_pieces(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    classes: NDArray[np.uint16],
    kind: int,
    min_words: int,
    pieces: NDArray[np.uint64],
    places: NDArray[np.uint32],
) -> int:
    """Write the hashes of all pieces that have enough words, with their rows and numbers; returns how many there are.

    A line (`kind` 1) ends at each newline, a paragraph (2) at one with blank lines after it, a value (0) nowhere.
    """
    count = 0
    for row in range(len(offsets) - 1):
        position, stop = offsets[row], offsets[row + 1]
        number = 0
        while position <= stop:
            high, low = _START_1, _START_2
            spaces = num_words = last = 0
            inside = False  # a word
            is_blank = True
            break_bytes = 0
            while position < stop:
                byte = data[position]
                if byte == 10 and kind > 0:
                    break_bytes = _measure_break(data, position, stop) if kind == 2 else 1
                    if break_bytes:
                        break
                if byte <= 32:
                    # Space counts only if more text follows: it is hashed when that comes.
                    spaces = spaces * 31 + byte + 1
                    inside, last = False, 0
                else:
                    if spaces and not is_blank:
                        high = (high ^ np.uint64(spaces)) * _PRIME_1
                        low = (low ^ np.uint64(spaces)) * _PRIME_2
                    spaces = 0
                    is_blank = False
                    if byte < 0x80 or byte >= 0xC0:  # a character begins
                        code, _ = decode_code_point(data, position, stop)
                        own: Any = np.int64(classes[code]) if code < len(classes) else 0
                        if own & _CLASS_SPACE:
                            inside, last = False, 0
                        else:
                            if own & _CLASS_LETTER_OR_DIGIT:
                                # A letter of a script without spaces is a word, and so is what follows it.
                                inside = inside and not (last and (own | last) & _CLASS_SPACELESS)
                                last = own
                            num_words += not inside
                            inside = True
                    high = (high ^ np.uint64(byte)) * _PRIME_1
                    low = (low ^ np.uint64(byte)) * _PRIME_2
                    high ^= high >> _33
                position += 1
            if num_words >= min_words and num_words > 0:
                pieces[count, 0] = _finish(high)
                pieces[count, 1] = _finish(low)
                places[count, 0] = row
                places[count, 1] = number
                count += 1
            if break_bytes == 0:
                break
            position += break_bytes
            number += 1
    return count


def hash_pieces(texts: pa.Array, kind: str, min_words: int) -> NDArray[Any]:
    r"""Hash all pieces of a column of texts, as `PIECE` records.

    >>> import pyarrow as pa
    >>> pieces = hash_pieces(pa.array(["one two\nb\n  one two "], pa.large_string()), LINES, 2)
    >>> pieces["number"].tolist(), bool(pieces["high"][0] == pieces["high"][1])
    ([0, 2], True)
    """
    data, offsets = get_text_buffers(texts)
    if kind == SUBSTRING:
        room = int(offsets[-1] - offsets[0]) // 2 + len(texts) + 1
    elif kind == COLUMN:
        room = len(texts)
    else:
        room = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + len(texts)
    hashes, places = np.empty((room, 2), np.uint64), np.empty((room, 2), np.uint32)
    if kind == SUBSTRING:
        words = np.empty(2 * BLOCK, np.uint64)
        count = hash_runs(data, offsets, make_character_table(), min_words, words, hashes, places)
    else:
        kind_number = (COLUMN, LINES, PARAGRAPHS).index(kind)
        count = _hash_pieces(data, offsets, make_character_classes(), kind_number, min_words, hashes, places)
    records = np.empty(count, PIECE)
    records["high"], records["low"] = hashes[:count, 0], hashes[:count, 1]
    records["row"], records["number"] = places[:count, 0], places[:count, 1]
    return records


def remove_pieces(text: str, kind: str, numbers: Sequence[int], min_words: int) -> str:
    r"""Return the text without some of its pieces and the breaks after them.

    >>> remove_pieces("a\nb\n\nc", "lines", [1], 1), remove_pieces("a\nb\n\nc", "paragraphs", [1], 1)
    ('a\n\nc', 'a\nb')
    """
    if kind == COLUMN:
        return ""
    if kind == SUBSTRING:
        words = find_word_spans(text)
        return cut_spans(text, [(int(words[each, 0]), int(words[each + min_words - 1, 1])) for each in numbers])
    ends = [*(match.end() for match in _BREAKS[kind].finditer(text)), len(text)]
    starts = [0, *ends]
    edited = cut_spans(text, [(starts[number], ends[number]) for number in numbers])
    if numbers[-1] < len(ends) - 1:
        return edited
    # The last piece has no break after it: if it is removed, so is the break before it.
    size = len(edited.rstrip(_SPACE))
    line_end, newline, _ = edited[size:].partition("\n")
    return edited[:size] + (line_end.removesuffix("\r") if newline else line_end)


def call_kernels() -> None:
    """Hash the lines and the words of a text, so that a run compiles the functions before its workers start."""
    call_place()
    texts = pa.array(["one two\nthree four"], pa.large_string())
    for kind in (LINES, SUBSTRING):
        hash_pieces(texts, kind, 1)
