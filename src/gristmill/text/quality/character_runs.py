"""The longest run of one character other than a space: 4 in "aaah!!!!". About 1 ns a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COUNTERS = ("longest_character_run",)


@kernel
def _size_of(byte: int) -> int:
    if byte < 0xC0:
        return 1
    if byte < 0xE0:
        return 2
    return 3 if byte < 0xF0 else 4


@kernel
def count_character_runs(data: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Count in all documents. The space and control characters end a run; spaces beyond ASCII do not."""
    for document in range(len(offsets) - 1):
        position, end = offsets[document], offsets[document + 1]
        longest = run = before = 0
        while position < end:
            stop = min(position + _size_of(data[position]), end)
            character = 0  # its bytes as one number: enough to compare, without decoding
            while position < stop:
                character = (character << 8) | data[position]
                position += 1
            run = 0 if character <= 32 else run + 1 if character == before else 1
            before = character
            longest = max(longest, run)
        counts[document, 0] = longest
