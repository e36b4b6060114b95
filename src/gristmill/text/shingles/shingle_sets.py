"""Exact sets of shingles, for pairs of documents whose signatures do not decide whether they are similar.

8 bytes per shingle, sorted; two sets are compared in one pass over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.buffers import get_text_buffers
from gristmill.text.shingles.character_table import make_character_table
from gristmill.text.shingles.kernels import count_common, drop_repeated, shingle_text
from gristmill.text.shingles.minhash import BLOCK

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShingleSets:
    """Makes sets of shingles of `ngram` words.

    >>> import pyarrow as pa
    >>> one, other = ShingleSets(2).of(pa.array(["one two three four", "One two. Three!"], pa.large_string()))
    >>> jaccard(one, other)
    0.6666666666666666
    """

    ngram: int

    def of(self, texts: pa.Array, rows: NDArray[np.int64] | None = None) -> list[NDArray[np.uint64]]:
        """Make the set of each text, sorted; with `rows`, of these texts only."""
        data, offsets = get_text_buffers(texts)
        starts, stops = (offsets[:-1], offsets[1:]) if rows is None else (offsets[rows], offsets[rows + 1])
        # A word and the gap behind it take at least two bytes; a character that is a word of its own takes three.
        buffer = np.empty(int((stops - starts).max(initial=0)) // 2 + 1, dtype=np.uint64)
        words = np.empty(BLOCK, np.uint64)
        sets = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            count = shingle_text(data, start, stop, make_character_table(), self.ngram, words, buffer)
            buffer[:count].sort()  # `np.unique` hashes first, which takes twice as long
            sets.append(buffer[: drop_repeated(buffer, count)].copy())
        return sets


def jaccard(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    """Compute the Jaccard similarity of two sets: the size of the intersection by that of the union; 0/0 is 0."""
    common = count_common(first, second)
    return common / (len(first) + len(second) - common) if common else 0.0
