"""Shards mapped into memory, with advice to the operating system on how they will be read.

By default the system takes each page that is touched for the beginning of a scan, and reads 128 KiB around it. For
shuffled rows that is a hundred times what is used. Arrow's own mappings request whole files when they are opened, and
Python's hold a file descriptor each. So the mappings are made here, with three system calls.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache
from typing import Any

import pyarrow as pa

_RANDOM = getattr(mmap, "MADV_RANDOM", None)
_WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)
_FAILED = ctypes.c_void_p(-1).value


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
        _system().madvise(
            start, address + num_bytes - start, advice
        )  # only advice: a failure changes nothing but the speed
