"""The loops over sorted sets of shingles: distinct members, and members in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@kernel
def drop_repeated(numbers: NDArray[np.uint64], ends: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """Move the distinct numbers of each sorted part of an array to the front, one part behind another.

    `ends` are where the parts end, and `sizes` how many numbers are left of each.
    """
    first = num_kept = 0
    for part in range(len(ends)):
        num_before = num_kept
        for index in range(first, ends[part]):
            number = numbers[index]
            if index == first or number != numbers[num_kept - 1]:
                numbers[num_kept] = number
                num_kept += 1
        sizes[part] = num_kept - num_before
        first = ends[part]


@kernel
def count_common(
    numbers: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    common: NDArray[np.int64],
) -> None:
    """Count the numbers that pairs of sorted sets have in common. A set has `sizes` numbers, from `firsts` on."""
    for pair in range(len(left)):
        i, j = firsts[left[pair]], firsts[right[pair]]
        stop_i, stop_j = i + sizes[left[pair]], j + sizes[right[pair]]
        count = 0
        while i < stop_i and j < stop_j:
            # Without a jump, which would be wrong half of the time where sets differ.
            first, second = numbers[i], numbers[j]
            count += first == second
            i += first <= second
            j += second <= first
        common[pair] = count
