"""A mapping of names to numbers for millions of names: 24 bytes each, where a dictionary takes 250.

Names are known by a hash of 128 bits, in one sorted array. The newest, up to a sixteenth of all, wait in a dictionary,
so that the array is copied rarely: adding n names copies about 16 n entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIN_RECENT = 4096
_RECENT_SHARE = 16


class PackedIndex:
    """Numbers by name. One thread may set them while others look them up.

    >>> index = PackedIndex()
    >>> index["a"], index["b"], index["a"] = 1, 2, 3
    >>> index.get("a"), index.get("c"), sorted(index.values().tolist())
    (3, None, [2, 3])
    """

    def __init__(self) -> None:
        self._recent: dict[bytes, int] = {}
        self._packed: tuple[NDArray[np.bytes_], NDArray[np.int64]] = np.empty(0, "S16"), np.empty(0, np.int64)
        """The hashes of names, sorted, and the number of each."""

    def __setitem__(self, name: str, number: int) -> None:
        self._recent[_hash_name(name)] = number
        if len(self._recent) > max(_MIN_RECENT, len(self._packed[0]) // _RECENT_SHARE):
            # In this order: who looks up a name in the old dictionary, and then in either pair of arrays, finds it.
            self._packed = self._merge()
            self._recent = {}

    def get(self, name: str) -> int | None:
        """Return the number of a name; None if it has none."""
        key = _hash_name(name)
        number = self._recent.get(key)
        keys, numbers = self._packed
        if number is not None or not len(keys):
            return number
        place = keys.searchsorted(np.bytes_(key))
        # An item of an array of bytes has no zeros at its end.
        return int(numbers[place]) if place < len(keys) and keys[place] == key.rstrip(b"\0") else None

    def values(self) -> NDArray[np.int64]:
        """Return the numbers of all names, in no order."""
        return self._merge()[1]

    def _merge(self) -> tuple[NDArray[np.bytes_], NDArray[np.int64]]:
        keys, numbers = self._packed
        recent = sorted(self._recent.items())
        new_keys = np.array([key for key, _ in recent], "S16")
        new_numbers = np.array([number for _, number in recent], np.int64)
        places = np.searchsorted(keys, new_keys)
        is_known = np.zeros(len(recent), np.bool_)
        within = places < len(keys)
        is_known[within] = keys[places[within]] == new_keys[within]
        if is_known.any():
            numbers = numbers.copy()
            numbers[places[is_known]] = new_numbers[is_known]
        places, new_keys, new_numbers = places[~is_known], new_keys[~is_known], new_numbers[~is_known]
        return np.insert(keys, places, new_keys), np.insert(numbers, places, new_numbers)


def _hash_name(name: str) -> bytes:
    return xxhash.xxh3_128_digest(name.encode())
