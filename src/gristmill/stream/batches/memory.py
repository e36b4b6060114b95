"""The process's memory as one array, so that a kernel can gather rows from thousands of mapped files in one call.

A kernel takes arrays, and the rows of a batch are in many files: one call for each file would cost more than the copy.
With all addresses in one array, a row is a slice of it. Nothing is read or reserved here. The caller must have checked
that the addresses belong to a mapping that is kept alive (`shard_blocks`). The arrays begin at `FLOOR`: no array may
begin at address 0, and no system maps anything into the first page.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.stream.batches.kernels import FLOOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ADDRESS_BITS = 52
"""The bits of an address in user space, on any 64-bit machine today: x86-64 uses 47 of them, ARM 48."""


class Memory(NamedTuple):
    """All addresses from `FLOOR` on, as arrays of each type that shards hold."""

    uint16: NDArray[np.uint16]
    uint32: NDArray[np.uint32]
    int32: NDArray[np.int32]
    uint8: NDArray[np.uint8]


@cache
def memory() -> Memory:
    """Return the arrays, which are made once."""
    kinds = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint8
    return Memory(*map(_view_as, kinds))


def _view_as(kind: type[Any]) -> NDArray[Any]:
    count = (1 << _ADDRESS_BITS) // ctypes.sizeof(kind)
    return np.ctypeslib.as_array((kind * count).from_address(FLOOR))
