"""A long text in pieces that give the same ids as the whole.

A tokenizer that first cuts a text into words goes from left to right, so what stands before a border of words does not
change what comes after it. A place between words (behind a line's end, before a space) is taken as such a border if the
text around it gives the same ids in one as in two. A tokenizer that knows no words, or marks the start of a text,
fails that test everywhere, and then the text is encoded whole.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PIECE_CHARS = 1 << 18
_CONTEXT_CHARS = 2048
_MAX_TRIALS = 16
# A run of spaces or of line ends is no good place: it is one word or two, by what follows.
_BORDER = re.compile(r"(?<=\S\n)(?=\S)|(?<=\w)(?= \w)")


def encode_in_pieces(encode: Callable[[str], NDArray[np.uint32]], text: str) -> list[NDArray[np.uint32]]:
    """The ids of a text, in as many arrays as it took."""
    ids = []
    start = 0
    while len(text) - start > PIECE_CHARS:
        stop = _find_border(encode, text, start + PIECE_CHARS // 2)
        if stop is None:
            break
        ids.append(encode(text[start:stop]))
        start = stop
    ids.append(encode(text[start:] if start else text))
    return ids


def _find_border(encode: Callable[[str], NDArray[np.uint32]], text: str, start: int) -> int | None:
    for found in islice(_BORDER.finditer(text, start), _MAX_TRIALS):
        place = found.start()
        before, after = text[place - _CONTEXT_CHARS : place], text[place : place + _CONTEXT_CHARS]
        if np.array_equal(encode(before + after), np.concatenate([encode(before), encode(after)])):
            return place
    return None
