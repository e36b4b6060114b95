"""What repeats in a document: lines and paragraphs that are equal to earlier ones, and runs of one character.

Hashes find equal lines, bytes decide; the second and later occurrences are counted. For each document a hash table of
at least twice as many slots as it has lines is cleared, so the cost is proportional to the document's own size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.text.byte_kernels import choose_table_size, find_slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTERS = (
    "searched_lines",
    "searched_line_characters",
    "duplicate_lines",
    "duplicate_line_characters",
    "paragraphs",
    "duplicate_paragraphs",
    "duplicate_paragraph_characters",
)

_START, _END, _CHARACTERS, _OPENS_PARAGRAPH = range(4)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _is_same_line(data: NDArray[np.uint8], start: int, line: NDArray[np.int32], other: NDArray[np.int32]) -> bool:
    size = line[_END] - line[_START]
    if other[_END] - other[_START] != size:
        return False
    first, second = start + line[_START], start + other[_START]
    for offset in range(size):  # noqa: SIM110  (a generator would not compile)
        if data[first + offset] != data[second + offset]:
            return False
    return True


@kernel
def _number_lines(
    data: NDArray[np.uint8],
    start: int,
    lines: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    table: NDArray[np.int32],
    numbers: NDArray[np.int32],
) -> None:
    """Give each line the number of the first line that is equal to it."""
    size = choose_table_size(len(lines))
    table[:size] = 0
    for line in range(len(lines)):
        slot = np.int64(find_slot(hashes[line], np.uint64(size - 1)))
        while table[slot] != 0:
            other = table[slot] - 1
            if hashes[other] == hashes[line] and _is_same_line(data, start, lines[line], lines[other]):
                break
            slot = (slot + 1) & (size - 1)
        if table[slot] == 0:
            table[slot] = line + 1
        numbers[line] = table[slot] - 1


@kernel
def _is_repeated_paragraph(
    first: int,
    stop: int,
    num_lines: int,
    lines: NDArray[np.int32],
    numbers: NDArray[np.int32],
    table: NDArray[np.int32],
    mask: int,
) -> bool:
    """Whether a paragraph, lines `first` to `stop`, is in the table already. If not, it is added."""
    hashed = np.uint64(stop - first)
    for line in range(first, stop):
        hashed = (hashed ^ np.uint64(numbers[line])) * _SPREAD
        hashed ^= hashed >> np.uint64(29)
    slot = np.int64(find_slot(hashed, np.uint64(mask)))
    while table[slot] != 0:
        other = table[slot] - 1
        size = 0
        while size < stop - first and other + size < num_lines and numbers[other + size] == numbers[first + size]:
            size += 1
        # Equal lines are not enough: the other paragraph must end there too.
        ends = other + size == num_lines or lines[other + size, _OPENS_PARAGRAPH] == 1
        if size == stop - first and ends:
            return True
        slot = (slot + 1) & mask
    table[slot] = first + 1
    return False


@kernel
def count_repeated_lines(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: int,
    stop: int,
    is_searched: NDArray[np.bool_],
    lines: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    line_stops: NDArray[np.int64],
    table: NDArray[np.int32],
    numbers: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> None:
    """Count in those documents from `first` to `stop` that are searched, whose lines `scan` has noted.

    `table` and `numbers` are scratch memory for four times as many and as many numbers as one document has lines.
    """
    begin = 0
    for document in range(first, stop):
        own, own_hashes = lines[begin : line_stops[document]], hashes[begin : line_stops[document]]
        begin = line_stops[document]
        if not is_searched[document]:
            continue
        _number_lines(data, offsets[document], own, own_hashes, table, numbers)
        row = counts[document]
        row[:] = 0
        row[0] = len(own)
        size = choose_table_size(len(own))
        table[:size] = 0  # now for paragraphs
        paragraph = characters = 0
        for line in range(len(own)):
            row[1] += own[line, _CHARACTERS]
            characters += own[line, _CHARACTERS]
            if numbers[line] != line:
                row[2] += 1
                row[3] += own[line, _CHARACTERS]
            if line + 1 == len(own) or own[line + 1, _OPENS_PARAGRAPH] == 1:
                row[4] += 1
                if _is_repeated_paragraph(paragraph, line + 1, len(own), own, numbers, table, size - 1):
                    row[5] += 1
                    row[6] += characters
                paragraph, characters = line + 1, 0


@kernel
def count_character_runs(data: NDArray[np.uint8], offsets: NDArray[np.int64], longest_runs: NDArray[np.int64]) -> None:
    """Find the longest run of one character in each document: 4 in "aaah!!!!". About 1 ns a byte.

    The space and control characters end a run; spaces beyond ASCII do not.
    """
    for document in range(len(offsets) - 1):
        position, end = offsets[document], offsets[document + 1]
        longest = run = before = 0
        while position < end:
            lead = data[position]
            size = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            stop = min(position + size, end)
            character = 0  # its bytes as one number: enough to compare, without decoding
            while position < stop:
                character = (character << 8) | data[position]
                position += 1
            run = 0 if character <= 32 else run + 1 if character == before else 1
            before = character
            longest = max(longest, run)
        longest_runs[document] = longest
