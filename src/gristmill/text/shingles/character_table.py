"""What a character means when documents are compared: part of a word, a word of its own, nothing, or a gap.

Two texts that differ only in case, accents, punctuation, spacing or the width of their letters have the same words.
One character becomes one: `ß` and ligatures are not expanded, and above 2^16 letters are not folded. Marks without
width are ignored in all scripts, also where they are vowels. Digits stay as they are: texts with other numbers say
something else. Scripts that are written without gaps (Chinese, Japanese, Thai, Lao, Khmer, Burmese) have a word in each
character. See decision 11 for the numbers.

The table has an entry for each character below 2^16: 256 KiB, made in about 20 ms, once in a process. It follows the
Unicode version of Python, which is part of every fingerprint.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAP = 0
IGNORED = 1
"""The character is a mark on the one before it."""
ALONE = 1 << 31
"""A bit beside the character: it is a word of its own."""

_WITHOUT_GAPS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
)
_KOREAN = 0xAC00, 0xD7A3
_CHUNK = 64


@cache
def make_character_table() -> NDArray[np.uint32]:
    """Make the table: for each character below 2^16 `GAP`, `IGNORED`, or what it is folded to, perhaps with `ALONE`."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for first in range(0, 1 << 16, _CHUNK):
        chunk = "".join(map(chr, range(first, first + _CHUNK)))
        if not _stays_itself(chunk):
            table[first : first + _CHUNK] = [_fold_character(character) for character in chunk]
    for first, last in _WITHOUT_GAPS:
        script = table[first : last + 1]
        script[script > IGNORED] |= ALONE
    table.flags.writeable = False
    return table


def _stays_itself(chunk: str) -> bool:
    """Whether all characters are letters that are folded to themselves. Most of the table are Han and Korean ones."""
    if not chunk.isalpha() or chunk.lower() != chunk:
        return False
    is_korean = _KOREAN[0] <= ord(chunk[0]) and ord(chunk[-1]) <= _KOREAN[1]
    return is_korean or unicodedata.is_normalized("NFKD", chunk)


def _fold_character(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return IGNORED
    if not character.isalnum() and unicodedata.category(character) != "Mc":
        return GAP
    bare = [part for part in unicodedata.normalize("NFKD", character.lower()) if not unicodedata.combining(part)]
    # A character that decomposes into several (ligatures, Korean syllables) stays itself.
    return ord(bare[0]) if len(bare) == 1 and bare[0].isalnum() else ord(character.lower()[0])
