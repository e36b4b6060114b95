"""Files mapped into memory for rows in random order: the mappings, all memory as one array, and requests ahead of use.

By default the system takes each page that is touched for the beginning of a scan, and reads 128 KiB around it. For
shuffled rows that is a hundred times what is used. Arrow's own mappings request whole files when they are opened, and
each of Python's holds a file descriptor. So the mappings are made with three system calls (`map_file`).

A kernel takes arrays, and the rows of a batch are in thousands of files: one call for each would cost more than the
copy. With all addresses in one array (`memory`), a row is a slice of it. Nothing is read or reserved. The caller must
have checked that the addresses belong to a mapping that is kept alive (`row_table`). The arrays begin at `FLOOR`: no
array may begin at address 0, and no system maps anything into the first page.

The order of rows is known, so several can be read from the disk at once. But a request costs a system call for
each row, more than the copy of a row that is in memory. So rows are requested only while they come from the disk, which
the thread's count of major page faults shows (`ReadAhead`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.stream.stream_kernels import FLOOR

if TYPE_CHECKING:
    from numpy.typing import NDArray


_RANDOM = getattr(mmap, "MADV_RANDOM", None)
_WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)
_FAILED = ctypes.c_void_p(-1).value
_ADDRESS_BITS = 52
"""The bits of an address in user space, on any 64-bit machine today: x86-64 uses 47 of them, ARM 48."""
_USAGE_SCOPE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_ROWS_IN_FLIGHT = 64
_BATCHES_UNTIL_WARM = 256
"""Rows that were requested in time cause no faults. So after this many batches without a fault, one is made without a
request, to see whether rows still come from the disk."""


class _Mapping:
    """A mapping that is removed when the last reference to it is gone."""

    def __init__(self, address: int, num_bytes: int) -> None:
        weakref.finalize(self, _system().munmap, address, num_bytes).atexit = False


@cache
def _system() -> Any:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    numbers = [ctypes.c_int] * 3
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers, ctypes.c_long]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return system


def map_file(path: str, num_bytes: int, *, at_random: bool) -> pa.Buffer:
    """Map the first `num_bytes` of a file, which must be that long; `at_random`: they will be read in no order.

    The mapping lives as long as the buffer. The file descriptor is closed.
    """
    if not num_bytes:
        return pa.py_buffer(b"")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return map_descriptor(descriptor, num_bytes, at_random=at_random)
    except OSError as error:
        error.add_note(f"while mapping {path}")
        raise
    finally:
        os.close(descriptor)


def map_range(path: str, start: int, num_bytes: int) -> pa.Buffer:
    """Map a range of a file, which must be that long, for reading in no order."""
    begin = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = map_descriptor(descriptor, start + num_bytes - begin, at_random=True, start=begin)
    finally:
        os.close(descriptor)
    return mapped.slice(start - begin, num_bytes)


def map_descriptor(descriptor: int, num_bytes: int, *, at_random: bool, start: int = 0) -> pa.Buffer:
    """Map bytes of an open file, at least one, from a page's beginning on. The descriptor may be closed then."""
    address = _system().mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if at_random:
        _advise(address, num_bytes, _RANDOM)
    return pa.foreign_buffer(address, num_bytes, _Mapping(address, num_bytes))


def request_pages(address: int, num_bytes: int) -> None:
    """Start reading these pages of a mapping from the disk, without waiting for them."""
    _advise(address, num_bytes, _WILL_NEED)


def _advise(address: int, num_bytes: int, advice: int | None) -> None:
    if advice is not None and num_bytes:
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        # Only advice: a failure changes nothing but the speed.
        _system().madvise(start, address + num_bytes - start, advice)


class Memory(NamedTuple):
    """All addresses from `FLOOR` on, as arrays of each type that shards hold."""

    uint16: NDArray[np.uint16]
    uint32: NDArray[np.uint32]
    int32: NDArray[np.int32]
    uint8: NDArray[np.uint8]
    float32: NDArray[np.float32]


@cache
def memory() -> Memory:
    """Return the arrays, which are made once."""
    kinds: tuple[Any, ...] = (*(ctypes.c_uint16, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint8, ctypes.c_float),)
    arrays = [(kind * ((1 << _ADDRESS_BITS) // ctypes.sizeof(kind))).from_address(FLOOR) for kind in kinds]
    return Memory(*map(np.ctypeslib.as_array, arrays))


class ReadAhead:
    """Decides when to request later rows. Threads may share it: at worst a batch is requested twice."""

    def __init__(self) -> None:
        self._batches_left = 0
        """The number of batches for which rows are still requested."""

    @staticmethod
    def num_faults() -> int:
        """Count the page faults of this thread so far that had to wait for the disk."""
        return resource.getrusage(_USAGE_SCOPE).ru_majflt

    def note(self, num_faults: int) -> bool:
        """Note a batch, with the faults before it; return whether rows have just begun to come from the disk."""
        if self.num_faults() == num_faults:
            self._batches_left -= self._batches_left > 0
            return False
        was_warm = self._batches_left == 0
        self._batches_left = _BATCHES_UNTIL_WARM
        return was_warm

    @property
    def is_cold(self) -> bool:
        return self._batches_left > 0

    @staticmethod
    def batches_ahead(num_rows: int) -> int:
        """Return how many batches of this many rows are requested ahead."""
        return max(1, _ROWS_IN_FLIGHT // max(num_rows, 1))
