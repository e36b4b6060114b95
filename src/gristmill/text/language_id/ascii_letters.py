"""Texts with a letter: nearly all have an ASCII one among their first bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@kernel
def find_ascii_letters(data: NDArray[np.uint8], offsets: NDArray[np.int64], has_letter: NDArray[np.bool_]) -> None:
    """For each text whether it has an ASCII letter."""
    for text in range(len(offsets) - 1):
        for position in range(offsets[text], offsets[text + 1]):
            if 0x61 <= data[position] | 0x20 <= 0x7A:
                has_letter[text] = True
                break
