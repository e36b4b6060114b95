"""Where the words of one text begin and end: the words that the kernels hash, for the few texts whose words are shown.

A few array operations for each text, 50 µs for a short one, about 20 MB/s; the kernels, which only count and hash, are
ten times as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.shingles.character_table import ALONE, GAP, IGNORED, make_character_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_FIRST_SUPPLEMENTARY = 1 << 16
_PICTURES = (0x1F000, 0x1FBF0)
_FIRST_IDEOGRAPH = 0x20000
_FIRST_MARK = 0xE0000
_JOINED_CHARACTERS = 1 << 18


def find_word_spans(text: str) -> NDArray[np.int64]:
    """Find the first character of each word, and the one behind its last.

    >>> find_word_spans("It's 你好.").tolist()
    [[0, 2], [3, 4], [5, 6], [6, 7]]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    entries = _classify(codes)
    shown = np.flatnonzero(entries != IGNORED)
    kinds = entries[shown]
    is_alone = kinds >= ALONE
    is_inside = (kinds != GAP) & ~is_alone
    follows_inside = np.concatenate([[False], is_inside[:-1]])
    precedes_inside = np.concatenate([is_inside[1:], [False]])
    first = is_alone | (is_inside & ~follows_inside)
    last = is_alone | (is_inside & ~precedes_inside)
    return np.stack([shown[first], shown[last] + 1], axis=1).astype(np.int64)


def find_words_with_letters(texts: Sequence[str]) -> Iterator[NDArray[np.bool_]]:
    """For each text, for each of its words, whether it has a letter. Short texts are looked at together.

    >>> [words.tolist() for words in find_words_with_letters(["It's 12.", "", "B2"])]
    [[True, True, False], [], [True]]
    """
    joined: list[str] = []
    num_characters = 0
    for text in texts:
        joined.append(text)
        num_characters += len(text)
        if num_characters > _JOINED_CHARACTERS:
            yield from _find_in_lines(joined)
            joined, num_characters = [], 0
    if joined:
        yield from _find_in_lines(joined)


def _find_in_lines(texts: Sequence[str]) -> list[NDArray[np.bool_]]:
    lines = "\n".join(texts)  # no word extends over a line
    spans = find_word_spans(lines)
    letters = np.char.isalpha(np.frombuffer(lines.encode("utf-32-le", "surrogatepass"), "<U1"))
    num_letters = np.concatenate([[0], np.cumsum(letters)])
    has_letter = num_letters[spans[:, 1]] > num_letters[spans[:, 0]]
    ends = np.cumsum([len(text) + 1 for text in texts])
    return np.split(has_letter, np.searchsorted(spans[:, 0], ends[:-1]))


def _classify(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Look the characters up in the table; those from 2^16 on are classified as the kernels do it."""
    is_supplementary = codes >= _FIRST_SUPPLEMENTARY
    entries = make_character_table()[np.where(is_supplementary, 0, codes)]
    if is_supplementary.any():
        others = codes[is_supplementary]
        kinds = np.where(others >= _FIRST_IDEOGRAPH, others | np.uint32(ALONE), others)
        kinds[(others >= _PICTURES[0]) & (others < _PICTURES[1])] = GAP
        kinds[others >= _FIRST_MARK] = IGNORED
        entries[is_supplementary] = kinds
    return entries
