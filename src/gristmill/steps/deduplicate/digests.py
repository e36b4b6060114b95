"""Exact copies: documents whose texts have the same digest of 128 bits.

128 bits are enough not to compare the texts themselves: among a billion documents, two different texts share a digest
with a probability of about 10^-21.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from gristmill.steps.deduplicate.candidates import group_by_digest
from gristmill.steps.deduplicate.clusters import Removals
from gristmill.text.buffers import get_text_buffers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.steps.deduplicate.candidates import Ranks


def digest_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """Return the digest of each text: 128 bits, as two numbers."""
    data, offsets = get_text_buffers(texts)
    view, digest = memoryview(data.data), xxhash.xxh3_128_digest
    joined = b"".join([digest(view[start:stop]) for start, stop in pairwise(offsets.tolist())])
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def find_copies(digests: NDArray[np.uint64], documents: NDArray[np.int64], ranks: Ranks) -> Removals:
    """Find the documents whose text a better document has too."""
    groups = group_by_digest(digests, documents, ranks)
    sizes = np.diff(groups.starts)
    is_first = np.zeros(len(groups.documents), dtype=bool)
    is_first[groups.starts[:-1]] = True
    survivors = np.repeat(groups.documents[groups.starts[:-1]], sizes)[~is_first]
    removed = groups.documents[~is_first]
    order = np.argsort(removed)
    return Removals(removed[order], survivors[order], np.ones(len(removed)))
