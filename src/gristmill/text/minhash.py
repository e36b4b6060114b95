"""MinHash signatures of texts, and keys that similar texts have in common.

A signature has n = `bands * rows` numbers. The share of numbers in which two signatures agree estimates the Jaccard
similarity J of their shingle sets, with a standard deviation of sqrt(J(1-J)/n). A band is `rows` consecutive numbers:
texts of similarity J agree in at least one of `bands` with probability 1-(1-J^rows)^bands. With 18 bands of 6 rows that
is 99.6 % for J = 0.8, and 25 % for J = 0.5.

Only a byte of each number is stored (`SignedTexts.sketches`, 108 bytes per document), which is all that the estimate
needs: unequal numbers have equal bytes once in 256, and the estimate subtracts that share.

Where signatures do not decide whether two documents are similar, their exact sets of shingles do: 8 bytes per shingle,
sorted; two sets are compared in one pass over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.seeds import derive_key
from gristmill.runtime.kernels import kernel
from gristmill.text.buffers import get_text_buffers
from gristmill.text.comparison_words import make_character_table
from gristmill.text.shingle_kernels import hash_bands, shingle_texts, sign_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


BLOCK = 1024
"""Number of words in a block; a shingle has far fewer."""
_LANES = 8
"""Numbers of 32 bits in a vector."""
_MIX = np.uint32(0x9E3779B1)
_TEXTS_AT_ONCE = 4096
"""Number of texts whose full signatures are in memory: 1.7 MiB."""


@dataclass(frozen=True, slots=True)
class SignedTexts:
    """The signatures of some texts. A text with fewer words than a shingle has none."""

    counts: NDArray[np.int64]
    """The number of shingles of each text, with repetitions; 0: the text is too short."""
    rows: NDArray[np.int64]
    """Indexes of the texts that have a signature."""
    keys: NDArray[np.uint64]
    """The key of each band, for each of these texts."""
    sketches: NDArray[np.uint8]
    """A byte of each number of the signature, for each of these texts."""


@dataclass(frozen=True)
class MinHash:
    """Signs texts. Signatures depend only on the text and these three numbers, so any two can be compared.

    >>> import pyarrow as pa
    >>> signed = MinHash(ngram=2).sign(pa.array(["One two three.", "one TWO, three", "one"], pa.large_string()))
    >>> signed.counts.tolist(), signed.rows.tolist(), bool((signed.keys[0] == signed.keys[1]).all())
    ([2, 2, 0], [0, 1], True)
    """

    ngram: int = 5
    bands: int = 18
    rows: int = 6

    @property
    def num_permutations(self) -> int:
        return self.bands * self.rows

    @cached_property
    def _factors(self) -> NDArray[np.uint32]:
        """The factors of the permutations: odd, so that no two shingles become equal. Some more fill a last vector."""
        count = -(-self.num_permutations // _LANES) * _LANES
        numbers = np.array([derive_key(number, "minhash") for number in range(count)], dtype=np.uint64)
        return (numbers >> np.uint64(32)).astype(np.uint32) | np.uint32(1)

    def sign(self, texts: pa.Array) -> SignedTexts:
        """Sign a column of texts (`large_string`); null counts as empty."""
        data, offsets = get_text_buffers(texts)
        counts = np.empty(len(texts), dtype=np.int64)
        keys, sketches = [], []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            chunk_counts = counts[first : first + _TEXTS_AT_ONCE]
            chunk_offsets = offsets[first : first + len(chunk_counts) + 1]
            signatures = self._sign_chunk(data, chunk_offsets, chunk_counts)[chunk_counts > 0]
            keys.append(self._make_keys(signatures))
            sketches.append(((signatures * _MIX) >> np.uint32(24)).astype(np.uint8))
        rows = np.flatnonzero(counts)
        if not keys:
            no_keys = self._make_keys(np.empty((0, self.num_permutations), np.uint32))
            return SignedTexts(counts, rows, no_keys, np.empty((0, self.num_permutations), np.uint8))
        return SignedTexts(counts, rows, np.concatenate(keys), np.concatenate(sketches))

    def _sign_chunk(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """Compute the full signatures of some texts, and write their numbers of shingles to `counts`."""
        signatures = np.empty((len(counts), self.num_permutations), np.uint32)
        words, shingles = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
        short = np.empty(BLOCK + 8, np.uint32)
        sign_texts(
            data,
            offsets,
            make_character_table(),
            self.ngram,
            self._factors,
            words,
            shingles,
            short,
            np.empty(len(self._factors), np.uint32),
            signatures,
            counts,
        )
        return signatures

    def _make_keys(self, signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
        keys = np.empty((len(signatures), self.bands), dtype=np.uint64)
        hash_bands(signatures, self.bands, keys)
        return keys


def estimate_similarities(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Estimate the similarity of pairs of sketches: row i of the first array with row i of the second.

    >>> estimate_similarities(np.array([[1, 2, 3, 4]], np.uint8), np.array([[1, 2, 3, 9]], np.uint8)).round(2).tolist()
    [0.75]
    """
    num_permutations = first.shape[1]
    num_equal = np.count_nonzero(first == second, axis=1)
    # Of n bytes, J*n are equal because the numbers are, and (1-J)*n/256 by chance. Solved for J:
    similarities: NDArray[np.float64] = np.maximum(256 * num_equal - num_permutations, 0) / (255 * num_permutations)
    return similarities


@dataclass(frozen=True, slots=True)
class ShingleSets:
    """The sets of shingles of some texts, one after another in one array.

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
        # A word and the gap after it take at least two bytes; a character that is a whole word takes three.
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


@kernel
def drop_repeated(numbers: NDArray[np.uint64], ends: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """Move the distinct numbers of each sorted part of an array to the front, one part after another.

    `ends` are where the parts end, and `sizes` how many numbers are left of each.
    """
    first = num_kept = 0
    for part in range(len(ends)):
        num_before = num_kept
        for index in range(first, ends[part]):
            number = numbers[index]
            if index == first or number != numbers[num_kept - 1]:
                numbers[num_kept] = number
                num_kept += 1
        sizes[part] = num_kept - num_before
        first = ends[part]


@kernel
def count_common(
    numbers: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    common: NDArray[np.int64],
) -> None:
    """Count the numbers that pairs of sorted sets have in common. A set has `sizes` numbers, from `firsts` on."""
    for pair in range(len(left)):
        i, j = firsts[left[pair]], firsts[right[pair]]
        stop_i, stop_j = i + sizes[left[pair]], j + sizes[right[pair]]
        count = 0
        while i < stop_i and j < stop_j:
            # Without a jump, which would be wrong half of the time where sets differ.
            first, second = numbers[i], numbers[j]
            count += first == second
            i += first <= second
            j += second <= first
        common[pair] = count
