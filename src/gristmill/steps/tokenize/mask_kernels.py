"""Compiled loops over the tokens and texts of chats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@kernel
def mask_tokens(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
    is_added: NDArray[np.bool_],
    begins_text: bool,  # noqa: FBT001
    begins_behind_added: bool,  # noqa: FBT001
    sizes: NDArray[np.int64],
    trained: NDArray[np.int64],
    trained_offsets: NDArray[np.int64],
    mask: NDArray[np.bool_],
    is_unplaced: NDArray[np.bool_],
) -> None:
    """Find for each token whether it begins in a trained range; and the texts whose tokens do not add up to their size.

    `lengths` and `is_added` are by id. A piece of text may begin with a mark that stands for nothing: at the beginning
    of a text (`begins_text`), and behind each added token.
    """
    for row in range(len(sizes)):
        position = 0
        place, last_place = trained_offsets[row], trained_offsets[row + 1]
        has_mark = begins_text
        for token in range(offsets[row], offsets[row + 1]):
            number = ids[token]
            while place < last_place and trained[place + 1] <= position:
                place += 2
            mask[token] = place < last_place and trained[place] <= position
            position += lengths[number]
            if is_added[number]:
                has_mark = begins_behind_added
            else:
                position -= has_mark
                has_mark = False
        is_unplaced[row] = position != sizes[row]


@kernel
def find_composable_texts(data: NDArray[np.uint8], offsets: NDArray[np.int64], may_compose: NDArray[np.bool_]) -> None:
    """Find the texts that NFC might change, among those that are marked: those with a character outside of some ranges.

    The ranges are U+0000 to U+02FF (Latin), U+0400 to U+047F (Cyrillic), U+2010 to U+205F (punctuation), U+3000 to
    U+3029, U+3040 to U+3098 and U+309B to U+9FFF (Chinese, Japanese), U+AC00 to U+D7A3 (Korean), U+FF00 to U+FFFF
    (wide forms) and U+1F000 to U+1FFFF (emoji): none of these composes with another one, decomposes, or is sorted.
    """
    for row in range(len(offsets) - 1):
        if not may_compose[row]:
            continue
        position, stop = offsets[row], offsets[row + 1]
        is_stable = True
        while position < stop and is_stable:
            first = data[position]
            if first < 0xCC:  # ASCII, continuation bytes, and characters of two bytes up to U+02FF
                position += 1
                continue
            if 0xE4 <= first <= 0xE9:  # U+4000 to U+9FFF, most of all Chinese characters
                position += 3
                continue
            is_stable = False
            if 0xD0 <= first <= 0xD1:
                is_stable = True
                position += 2
            elif 0xE2 <= first <= 0xEF:
                code = (first & 15) << 12 | (data[position + 1] & 63) << 6 | (data[position + 2] & 63)
                is_stable = (
                    0x309B <= code <= 0x9FFF
                    or 0x3040 <= code <= 0x3098
                    or 0x2010 <= code <= 0x205F
                    or 0x3000 <= code <= 0x3029
                    or 0xAC00 <= code <= 0xD7A3
                    or code >= 0xFF00
                )
                position += 3
            elif first == 0xF0 and data[position + 1] == 0x9F:
                is_stable = True
                position += 4
        may_compose[row] = not is_stable


@kernel
def find_trained_rows(mask: NDArray[np.bool_], offsets: NDArray[np.int64], is_trained: NDArray[np.bool_]) -> None:
    """Find the texts that have a trained token."""
    for row in range(len(is_trained)):
        is_trained[row] = False
        for token in range(offsets[row], offsets[row + 1]):
            if mask[token]:
                is_trained[row] = True
                break
