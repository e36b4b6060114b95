"""MinHash signatures of texts, and the keys by which alike ones are found.

A signature has `bands * rows` numbers; the share in which two agree is an estimate of the Jaccard similarity of their
shingle sets with a standard deviation of sqrt(J(1-J)/n). A band is `rows` numbers in a row: texts of similarity J agree
in at least one of `bands` with probability 1-(1-J^rows)^bands.

What is kept of a signature is a byte of each number (`SignedTexts.sketches`, 108 bytes a document), which is all that
the estimate needs: unequal numbers have equal bytes once in 256, and that is taken off again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.seeds import derive_key
from gristmill.text.buffers import text_buffers
from gristmill.text.shingles.character_table import character_table
from gristmill.text.shingles.kernels import hash_bands, sign_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

BLOCK = 1024
"""Words that are worked on at once; a shingle has far fewer."""
_MIX = np.uint32(0x9E3779B1)
_TEXTS_AT_ONCE = 4096
"""Full signatures are held for this many texts: 1.7 MiB of them."""


@dataclass(frozen=True, slots=True)
class SignedTexts:
    """The signatures of some texts; those with fewer words than a shingle has have none."""

    counts: NDArray[np.int64]
    """How many shingles each text has, with repetitions; 0: it is too short."""
    rows: NDArray[np.int64]
    """The texts that have a signature."""
    keys: NDArray[np.uint64]
    """For each of these, the key of each band."""
    sketches: NDArray[np.uint8]
    """For each of these, a byte of each number of its signature."""


@dataclass(frozen=True)
class MinHash:
    """How texts are signed. The same for all documents that are compared: it depends on these three numbers alone.

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
        """Odd, so that no two shingles meet."""
        numbers = np.array([derive_key(place, "minhash") for place in range(self.num_permutations)], dtype=np.uint64)
        return (numbers >> np.uint64(32)).astype(np.uint32) | np.uint32(1)

    def sign(self, texts: pa.Array) -> SignedTexts:
        """The signatures of a column of texts (`large_string`); null counts as empty."""
        data, offsets = text_buffers(texts)
        counts = np.empty(len(texts), dtype=np.int64)
        keys, sketches = [], []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = counts[first : first + _TEXTS_AT_ONCE]
            signatures = self._signatures(data, offsets[first : first + len(some) + 1], some)[some > 0]
            keys.append(self._keys(signatures))
            sketches.append(((signatures * _MIX) >> np.uint32(24)).astype(np.uint8))
        rows = np.flatnonzero(counts)
        if not keys:
            return SignedTexts(
                counts, rows, self._keys(np.empty((0, self.num_permutations), np.uint32)), self._no_sketches
            )
        return SignedTexts(counts, rows, np.concatenate(keys), np.concatenate(sketches))

    @property
    def _no_sketches(self) -> NDArray[np.uint8]:
        return np.empty((0, self.num_permutations), np.uint8)

    def _signatures(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        signatures = np.full((len(counts), self.num_permutations), 0xFFFFFFFF, dtype=np.uint32)
        words, shingles = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
        short = np.empty(BLOCK + 8, np.uint32)
        sign_texts(
            data,
            offsets,
            character_table(),
            self.ngram,
            self._factors,
            words,
            shingles,
            short,
            signatures,
            counts,
        )
        return signatures

    def _keys(self, signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
        keys = np.empty((len(signatures), self.bands), dtype=np.uint64)
        hash_bands(signatures, self.bands, keys)
        return keys


def estimate_similarities(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The estimated similarity of each pair of sketches, one below the other in two arrays.

    >>> estimate_similarities(np.array([[1, 2, 3, 4]], np.uint8), np.array([[1, 2, 3, 9]], np.uint8)).round(2).tolist()
    [0.75]
    """
    num_permutations = first.shape[1]
    equal = np.count_nonzero(first == second, axis=1)
    found: NDArray[np.float64] = np.maximum(256 * equal - num_permutations, 0) / (255 * num_permutations)
    return found
