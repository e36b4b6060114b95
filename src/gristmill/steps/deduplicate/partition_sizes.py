"""How large partitions of keys become, and what a worker needs to hold one."""

from __future__ import annotations

import math

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
