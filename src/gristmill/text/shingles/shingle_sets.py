"""The exact sets of shingles, for pairs of documents whose signatures leave it open whether they are alike.

8 bytes a shingle, sorted; two sets are compared in one walk over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.buffers import text_buffers
from gristmill.text.shingles.character_table import character_table
from gristmill.text.shingles.kernels import count_common, drop_repeated, shingle_text
from gristmill.text.shingles.minhash import BLOCK

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShingleSets:
    """Makes them, for shingles of `ngram` words.

    >>> import pyarrow as pa
    >>> one, other = ShingleSets(2).of(pa.array(["one two three four", "One two. Three!"], pa.large_string()))
    >>> jaccard(one, other)
    0.6666666666666666
    """

    ngram: int

    def of(self, texts: pa.Array, rows: NDArray[np.int64] | None = None) -> list[NDArray[np.uint64]]:
        """The set of each text, sorted; with `rows` of some of them."""
        data, offsets = text_buffers(texts)
        starts, stops = (offsets[:-1], offsets[1:]) if rows is None else (offsets[rows], offsets[rows + 1])
        # A word and the gap behind it take two bytes or more, but for those of one character, which take three.
        room = np.empty(int((stops - starts).max(initial=0)) // 2 + 1, dtype=np.uint64)
        words = np.empty(BLOCK, np.uint64)
        sets = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            count = shingle_text(data, start, stop, character_table(), self.ngram, words, room)
            room[:count].sort()  # `np.unique` hashes first, which takes twice as long
            sets.append(room[: drop_repeated(room, count)].copy())
        return sets


def jaccard(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    """What two sets share of all that is in either; 0 where both are empty: nothing is known to be shared."""
    common = count_common(first, second)
    return common / (len(first) + len(second) - common) if common else 0.0
