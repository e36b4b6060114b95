"""Randomness as a pure function: `hash(seed, purpose, identity)`. No generator, no state, no order of arrival.

The same record gets the same number no matter what else is in the corpus, and two purposes never share a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def derive_key(seed: int, purpose: str) -> int:
    """Derive one 64-bit key for each seed and purpose."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{purpose}".encode())


def hash_origins(seed: int, purpose: str, origins: pa.StructArray) -> NDArray[np.uint64]:
    """Hash each origin to a uniform 64-bit number; in bulk, about 5 ns each."""
    hashes = np.full(len(origins), derive_key(seed, purpose), dtype=np.uint64)
    for name in ("file", "position", "part"):
        hashes = _mix(hashes ^ origins.field(name).to_numpy(zero_copy_only=False).astype(np.uint64))
    return hashes


def hash_texts(seed: int, purpose: str, texts: pa.Array) -> NDArray[np.uint64]:
    """Hash each string to a uniform 64-bit number. Null counts as empty."""
    purpose_key = derive_key(seed, purpose)
    digest = xxhash.xxh3_64_intdigest
    values = texts.cast(pa.large_binary()).to_pylist()
    return np.fromiter((digest(value or b"", purpose_key) for value in values), dtype=np.uint64, count=len(values))


def hash_bound(fraction: float) -> int:
    """Return the bound that a uniform 64-bit hash is below with this probability. Compare with `<`: 1 keeps all."""
    return min(int(fraction * 2**64), 2**64 - 1) if fraction < 1 else 2**64


def find_ranges(hashes: NDArray[np.uint64], num_ranges: int) -> NDArray[np.int64]:
    """Find for each hash which of `num_ranges` equal ranges of 64-bit numbers it is in; at most 2^32 ranges.

    >>> find_ranges(np.array([0, 2**62, 2**64 - 1], np.uint64), 3).tolist()
    [0, 0, 2]
    """
    if not 1 <= num_ranges <= 1 << 32:
        raise UsageError(f"the number of ranges must be from 1 to 2^32, not {num_ranges}")
    # The high half of the hash times the number of ranges, divided by 2^32: exact in 64 bits.
    return ((hashes >> np.uint64(32)) * np.uint64(num_ranges) >> np.uint64(32)).astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
