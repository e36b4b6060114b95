"""Where the words of one text begin and end: the words that the kernels hash, for the few texts whose words are shown.

A few array operations for each text, about 20 MB/s; the kernels, which only count and hash, are ten times as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.shingles.character_table import ALONE, GAP, IGNORED, make_character_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_SUPPLEMENTARY = 1 << 16
_PICTURES = (0x1F000, 0x1FBF0)
_FIRST_IDEOGRAPH = 0x20000
_FIRST_MARK = 0xE0000


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
