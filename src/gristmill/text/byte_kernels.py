"""Compiled helpers that the kernels of texts share: characters, eight bytes at once, slots of hash tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import inlined_kernel, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_1, _8, _32, _56 = (np.uint64(number) for number in (1, 8, 32, 56))
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_BYTES = np.uint64(0x0101010101010101)
_EVERY_SECOND_BIT = np.uint64(0x5555555555555555)
_EVERY_SECOND_PAIR = np.uint64(0x3333333333333333)
_EVERY_SECOND_HALF = np.uint64(0x0F0F0F0F0F0F0F0F)


@kernel
def decode_code_point(data: NDArray[np.uint8], position: int, end: int) -> tuple[Any, int]:
    """Return the code point at a place and its number of bytes. Bytes that are not UTF-8 give any code point."""
    byte = np.int64(data[position])
    if byte < 0x80:
        return byte, 1
    if byte >= 0xF0 and position + 3 < end:
        low = ((data[position + 1] & 0x3F) << 12) | ((data[position + 2] & 0x3F) << 6) | (data[position + 3] & 0x3F)
        return ((byte & 0x07) << 18) | low, 4
    if byte >= 0xE0 and position + 2 < end:
        return ((byte & 0x0F) << 12) | ((data[position + 1] & 0x3F) << 6) | (data[position + 2] & 0x3F), 3
    if byte >= 0xC0 and position + 1 < end:
        return ((byte & 0x1F) << 6) | (data[position + 1] & 0x3F), 2
    return 0xFFFD, 1


@kernel
def load_8_bytes(data: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Return eight bytes as one number, the first one lowest; the compiler makes one load of it."""
    return (
        np.uint64(data[at])
        | (np.uint64(data[at + _1]) << _8)
        | (np.uint64(data[at + np.uint64(2)]) << np.uint64(16))
        | (np.uint64(data[at + np.uint64(3)]) << np.uint64(24))
        | (np.uint64(data[at + np.uint64(4)]) << _32)
        | (np.uint64(data[at + np.uint64(5)]) << np.uint64(40))
        | (np.uint64(data[at + np.uint64(6)]) << np.uint64(48))
        | (np.uint64(data[at + np.uint64(7)]) << _56)
    )


@kernel
def count_bits(bits: np.uint64) -> np.uint64:
    """Count the bits that are set; the compiler makes one instruction of it."""
    bits -= (bits >> _1) & _EVERY_SECOND_BIT
    bits = (bits & _EVERY_SECOND_PAIR) + ((bits >> np.uint64(2)) & _EVERY_SECOND_PAIR)
    bits = (bits + (bits >> np.uint64(4))) & _EVERY_SECOND_HALF
    return (bits * _BYTES) >> _56


@kernel
def choose_table_size(count: int) -> int:
    """Choose the size of a hash table that is at most half full."""
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@inlined_kernel
def find_slot(hashed: np.uint64, mask: np.uint64) -> Any:
    """Find the slot where the search for a hash begins, in a table of `mask + 1` slots."""
    return ((hashed * _SPREAD) >> np.uint64(24)) & mask
