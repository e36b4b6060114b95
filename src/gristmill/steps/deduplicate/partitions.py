"""Records in the order of their partitions, by counting: about 5 ns for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
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


def call_place() -> None:
    """Call the compiled function for records of whole words, and for others."""
    for size in (12, 25):
        sort_by_partition(np.zeros(2, f"V{size}"), np.array([1, 0]), 2)


@kernel
def _place(words: NDArray[Any], partitions: NDArray[np.int64], nexts: NDArray[np.int64], ordered: NDArray[Any]) -> None:
    """Copy each row to the next free place of its partition."""
    width = words.shape[1]
    for row in range(len(words)):
        place = nexts[partitions[row]]
        nexts[partitions[row]] = place + 1
        for column in range(width):
            ordered[place, column] = words[row, column]
