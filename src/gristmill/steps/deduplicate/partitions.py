"""Partitions of keys: how large they become, and records sorted by them, by counting (about 5 ns a record)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def sort_by_partition(
    records: NDArray[Any], partitions: NDArray[np.int64], num_partitions: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Sort records by the numbers of their partitions; records of a partition stay in order.

    Also returns where each partition begins, and where the last one ends.

    >>> sort_by_partition(np.array([5, 6, 7], np.uint32), np.array([1, 0, 1]), 2)
    (array([6, 5, 7], dtype=uint32), array([0, 1, 3]))
    """
    starts = np.zeros(num_partitions + 1, np.int64)
    np.cumsum(np.bincount(partitions, minlength=num_partitions), out=starts[1:])
    records = np.ascontiguousarray(records)
    kind = np.uint32 if records.itemsize % 4 == 0 else np.uint8
    words = records.view(kind).reshape(len(records), -1)
    ordered = np.empty_like(words)
    _place(words, partitions, starts[:-1].copy(), ordered)
    return ordered.reshape(-1).view(records.dtype), starts


def sort_runs_by_partition(
    pieces: Sequence[NDArray[np.uint64]],
    partitions: Sequence[NDArray[np.int64]],
    sizes: Sequence[NDArray[np.int64]],
    num_partitions: int,
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Like `sort_by_partition`, for pieces of which runs of numbers, `sizes` of them, belong to one partition.

    >>> sort_runs_by_partition([np.array([5, 6, 7], np.uint64)], [np.array([1, 0])], [np.array([2, 1])], 2)
    (array([7, 5, 6], dtype=uint64), array([0, 1, 3]))
    """
    starts = np.zeros(num_partitions + 1, np.int64)
    for piece_partitions, piece_sizes in zip(partitions, sizes, strict=True):
        np.add.at(starts, piece_partitions + 1, piece_sizes)
    np.cumsum(starts, out=starts)
    nexts, ordered = starts[:-1].copy(), np.empty(int(starts[-1]), np.uint64)
    for piece, piece_partitions, piece_sizes in zip(pieces, partitions, sizes, strict=True):
        _place_runs(piece, piece_partitions, piece_sizes, nexts, ordered)
    return ordered, starts


def call_place() -> None:
    """Call the compiled functions: for records of whole words, for others, and for runs."""
    for size in (12, 25):
        sort_by_partition(np.zeros(2, f"V{size}"), np.array([1, 0]), 2)
    sort_runs_by_partition([np.zeros(2, np.uint64)], [np.array([1, 0])], [np.array([1, 1])], 2)


@kernel
def _place(words: NDArray[Any], partitions: NDArray[np.int64], nexts: NDArray[np.int64], ordered: NDArray[Any]) -> None:
    """Copy each row to the next free place of its partition."""
    width = words.shape[1]
    for row in range(len(words)):
        place = nexts[partitions[row]]
        nexts[partitions[row]] = place + 1
        for column in range(width):
            ordered[place, column] = words[row, column]


@kernel
def _place_runs(
    numbers: NDArray[np.uint64],
    partitions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    nexts: NDArray[np.int64],
    ordered: NDArray[np.uint64],
) -> None:
    """Copy each run to the next free place of its partition."""
    first = 0
    for run in range(len(sizes)):
        place = nexts[partitions[run]]
        for index in range(sizes[run]):
            ordered[place + index] = numbers[first + index]
        nexts[partitions[run]] = place + sizes[run]
        first += sizes[run]


MIN_PIECE_BYTES = 1 << 20
"""The mean size of a piece that a task reads of a store, at least."""
MAX_GROWTH = 16
"""How many times larger than `partition_bytes` partitions may become for the sake of large pieces."""
_MEMORY_FACTOR = 5
"""A worker sorts a partition and groups its keys: measured with partitions of 32 MiB and more."""


def grow_partition_bytes(
    num_bytes: int, partition_bytes: int, num_writers: int = 0, *, piece_bytes: int = MIN_PIECE_BYTES
) -> int:
    """Choose the size of partitions of this many bytes in all, so that they are read in large pieces.

    With the number of tasks that write them, each of these leaves a large piece for each partition.

    >>> [grow_partition_bytes(gib << 30, 32 << 20) >> 20 for gib in (1, 4, 64, 256, 1024)]
    [32, 64, 256, 512, 512]
    """
    wanted = max(math.isqrt(num_bytes * piece_bytes), num_writers * piece_bytes)
    return max(partition_bytes, min(wanted, MAX_GROWTH * partition_bytes))


def expect_partition_memory(num_bytes: int, partition_bytes: int, *, on_store: bool) -> int:
    """Estimate the memory that a worker takes for one partition of keys that have this many bytes in all.

    >>> [expect_partition_memory(keys << 20, 32 << 20, on_store=True) >> 20 for keys in (1, 1 << 10, 1 << 16)]
    [5, 160, 1280]
    """
    size = grow_partition_bytes(num_bytes, partition_bytes) if on_store else partition_bytes
    return _MEMORY_FACTOR * min(size, num_bytes)
