"""A long text, cut into pieces that give the same ids as the whole.

A tokenizer that first cuts a text into words works from left to right, so what is before a border of words does not
change what follows it. A position between words (behind a line end, before a space) counts as such a border if the text
around it gives the same ids in one piece as in two. A tokenizer without words, or one that marks the start of a text,
fails that test everywhere, and then the text is encoded as a whole.
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
# Not inside a run of spaces or line ends: what follows decides whether it is one word or two.
_BORDER = re.compile(r"(?<=\S\n)(?=\S)|(?<=\w)(?= \w)")


def encode_in_pieces(encode: Callable[[str], NDArray[np.uint32]], text: str) -> list[NDArray[np.uint32]]:
    """Encode a text in pieces; returns the ids of each."""
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
    for match in islice(_BORDER.finditer(text, start), _MAX_TRIALS):
        border = match.start()
        before, after = text[border - _CONTEXT_CHARS : border], text[border : border + _CONTEXT_CHARS]
        if np.array_equal(encode(before + after), np.concatenate([encode(before), encode(after)])):
            return border
    return None
