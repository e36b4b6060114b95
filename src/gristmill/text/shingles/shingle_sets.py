"""Exact sets of shingles, for pairs of documents whose signatures do not decide whether they are similar.

8 bytes per shingle, sorted; two sets are compared in one pass over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.buffers import get_text_buffers
from gristmill.text.shingles.character_table import make_character_table
from gristmill.text.shingles.kernels import shingle_texts
from gristmill.text.shingles.minhash import BLOCK
from gristmill.text.shingles.set_kernels import count_common, drop_repeated

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShingleSets:
    """The sets of shingles of some texts, one behind another in one array.

    >>> import pyarrow as pa
    >>> sets = ShingleSets.of(pa.array(["one two three four", "One two. Three!"], pa.large_string()), ngram=2)
    >>> len(sets[0]), sets.compare(np.array([0]), np.array([1])).tolist()
    (3, [0.6666666666666666])
    """

    shingles: NDArray[np.uint64]
    firsts: NDArray[np.int64]
    """Where each set begins."""
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, texts: pa.Array, ngram: int) -> ShingleSets:
        """Make the sets of texts from shingles of `ngram` words."""
        data, offsets = get_text_buffers(texts)
        # A word and the gap behind it take at least two bytes; a character that is a word of its own takes three.
        # Memory that is not written to costs nothing.
        shingles = np.empty(int(offsets[-1] - offsets[0]) // 2 + len(texts), np.uint64)
        ends, sizes = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
        words = np.empty(BLOCK, np.uint64)
        shingle_texts(data, offsets, make_character_table(), ngram, words, shingles, ends)
        firsts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(texts)]
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
            shingles[first:end].sort()  # `np.unique` hashes first, which takes twice as long
        drop_repeated(shingles, ends, sizes)
        return cls(shingles[: int(sizes.sum())], np.cumsum(sizes) - sizes, sizes)

    def __getitem__(self, text: int) -> NDArray[np.uint64]:
        """Return the set of a text, sorted."""
        return self.shingles[self.firsts[text] : self.firsts[text] + self.sizes[text]]

    def compare(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the Jaccard similarity of pairs of texts: the intersection by the union; 0/0 is 0."""
        common = np.empty(len(left), np.int64)
        count_common(self.shingles, self.firsts, self.sizes, left, right, common)
        union = self.sizes[left] + self.sizes[right] - common
        similarities = np.zeros(len(left))
        np.divide(common, union, out=similarities, where=common > 0)
        return similarities
