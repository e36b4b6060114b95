"""The kind of each code point, as a table of bits for the kernels.

Letters, digits, capitals and spaces are those of the running Python's `unicodedata`; its version is that of Python,
which is part of every fingerprint. Built once a process in about 25 ms: 420 kB, of which a text uses a few cache lines.
"""

# ruff: noqa: RUF001  (marks that look alike are the point)

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPACE, LETTER, DIGIT, CAPITAL, SPACELESS, TERMINAL, BULLET, MARK = (1 << bit for bit in range(8))
SHARE_SHIFT = 8
"""The bits from here on: the share of a word, in twelfths, that a letter of a script without spaces stands for."""
WHOLE_WORD = 12

_NUM_CODE_POINTS = 0x33480
"""Beyond these there are no letters, digits or spaces: only marks, tags and private use."""

_SPACELESS_BLOCKS = (
    (0x0E00, 0x0EFF, 4),  # Thai, Lao
    (0x0F00, 0x0FFF, 4),  # Tibetan
    (0x1000, 0x109F, 4),  # Myanmar
    (0x1780, 0x17FF, 4),  # Khmer
    (0x1950, 0x19DF, 4),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF, 4),  # Tai Tham
    (0x2E80, 0x303F, 2),  # radicals, signs that repeat a letter
    (0x3040, 0x30FF, 3),  # Hiragana, Katakana
    (0x3100, 0x312F, 2),  # Bopomofo
    (0x31A0, 0x31EF, 2),  # Bopomofo
    (0x31F0, 0x31FF, 3),  # Katakana
    (0x3400, 0x4DBF, 2),  # Han
    (0x4E00, 0xA4CF, 2),  # Han, Yi
    (0xA9E0, 0xA9FF, 4),  # Myanmar
    (0xAA60, 0xAA7F, 4),  # Myanmar
    (0xF900, 0xFAFF, 2),  # Han
    (0xFF66, 0xFF9F, 3),  # Katakana of half width
    (0x16F00, 0x18DFF, 2),  # Miao, Tangut, Khitan
    (0x1AFF0, 0x1B16F, 3),  # Kana
    (0x1B170, 0x1B2FF, 2),  # Nushu
    (0x20000, 0x3347F, 2),  # Han
)
"""The first and last code point of each block, and how many of its letters translate one English word."""

_TERMINALS = ".!?…‼⁇⁈⁉‽⸮⸼。．｡！？︒︕︖﹒﹖﹗։؟؝؞۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿⳹⳺⳻꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫"
_BULLETS = "•●○◦‣⁃▪▫■□►▶·∙*-–"

_BY_CATEGORY = {"Lu": LETTER | CAPITAL, "Lt": LETTER | CAPITAL, "Ll": LETTER, "Lm": LETTER, "Lo": LETTER, "Nd": DIGIT}
_BY_CATEGORY |= dict.fromkeys(("Mn", "Mc", "Me"), MARK)
_CHUNK = 64
_FIRST_OF_HAN = 0x3400
_END_OF_SPACES = 0x3001


@cache
def make_character_classes() -> NDArray[np.uint16]:
    """Return the bits of each code point, which is the index. Code points beyond the table have none."""
    classes = np.zeros(_NUM_CODE_POINTS, dtype=np.uint16)
    characters = np.arange(_NUM_CODE_POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for first in range(0, _NUM_CODE_POINTS, _CHUNK):
        chunk = characters[first : first + _CHUNK]
        # Most of the table are Han letters, which have no case: one call for 64 of them saves most of the time.
        if chunk.isalpha() and first >= _FIRST_OF_HAN and unicodedata.category(chunk[0]) == "Lo":
            classes[first : first + _CHUNK] = LETTER
        else:
            classes[first : first + _CHUNK] = [_BY_CATEGORY.get(unicodedata.category(char), 0) for char in chunk]
    classes[[number for number in range(_END_OF_SPACES) if characters[number].isspace()]] = SPACE
    for first, last, letters_a_word in _SPACELESS_BLOCKS:
        block = classes[first : last + 1]
        block[(block & LETTER) != 0] |= SPACELESS | (WHOLE_WORD // letters_a_word << SHARE_SHIFT)
    for bit, listed in ((TERMINAL, _TERMINALS), (BULLET, _BULLETS)):
        classes[[ord(character) for character in listed]] |= bit
    classes.flags.writeable = False
    return classes


def is_one_word(text: str) -> bool:
    """Whether the kernels see the text as one word without punctuation around it.

    >>> [is_one_word(text) for text in ("the", "don't", "है", "的", "", "of the", "the,", "的是")]
    [True, True, True, True, False, False, False, False]
    """
    kinds = [_BY_CATEGORY.get(unicodedata.category(char), 0) for char in text]
    letters = [char for char, kind in zip(text, kinds, strict=True) if kind & (LETTER | DIGIT)]
    if not letters or any(map(str.isspace, text)) or not kinds[0] & (LETTER | DIGIT) or not kinds[-1]:
        return False
    return len(letters) == 1 or not any(map(is_spaceless, letters))


def is_spaceless(character: str) -> bool:
    """Whether the character belongs to a script that is written without spaces."""
    return any(first <= ord(character) <= last for first, last, _ in _SPACELESS_BLOCKS)
