"""Labels of lines as gaps: the numbers and fixed beginnings that lines of a log or a numbered listing share.

A label is a number that rises from line to line, with what is the same before it, or a beginning that stays the same.
One pass; only the last `_NUM_RECENT` lines are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINE_END = np.uint8(3)
"""The kind of a byte at which a line ends."""
NOT_FOUND = -1
_MAX_LABEL, _MIN_LABELS, _NUM_RECENT = 80, 3, 5


@kernel
def blank_labels(plain: NDArray[np.uint8], start: int, stop: int, kinds: NDArray[np.uint8]) -> None:
    """Blank what each line of a listing begins or ends with: `12`, `L12:`, `a.py:12:`, `In [12]:`, `[00:12:07] INFO:`.

    A label is a number that rises from line to line, with what is the same before it, or a beginning that stays the
    same (`_find_prefix`, `_find_suffix`). It takes three lines, each compared with the two before it, because numbers
    may be in separate lines. Empty lines do not count. A line is blanked when no other is compared with it.
    """
    lines = np.empty((_NUM_RECENT, 2), np.int64)  # where the recent lines begin and end, without spaces
    # Of each line's labels: where it ends or begins, how many lines have one so far, its step, and the line before.
    labels = np.empty((2, _NUM_RECENT, 4), np.int64)
    position, number = start, 0
    while position < stop:
        end = find_kind(plain, position, stop, kinds, LINE_END)
        first, last = _skip_blanks(plain, position, end), end
        position = end + 1
        while last > first and plain[last - 1] <= 32:
            last -= 1
        if first == last:
            continue
        slot = number % _NUM_RECENT
        if number >= _NUM_RECENT:
            _blank_label(plain, lines[slot], labels[:, slot])
        lines[slot, 0], lines[slot, 1] = first, last
        for side in range(2):
            labels[side, slot] = lines[slot, side], 1, 0, slot
            for gap in range(1, min(number, 2 - side) + 1):
                other = (number - gap) % _NUM_RECENT
                if side == 0:
                    before, edge = _find_prefix(plain, lines[other, 0], lines[other, 1], first, last, gap)
                    step = 0
                else:
                    before, edge, step = _find_suffix(plain, lines[other, 0], lines[other, 1], first, last)
                if edge == lines[slot, side]:
                    continue
                if labels[side, other, 1] == 1:
                    labels[side, other, 0] = before
                num_labels = labels[side, other, 1] + 1 if labels[side, other, 2] in (0, step) else 2
                labels[side, slot] = edge, num_labels, step, other
                if num_labels == _MIN_LABELS:  # the first ones count, too
                    labels[side, other, 1] = labels[side, labels[side, other, 3], 1] = _MIN_LABELS
                break
        number += 1
    for recent in range(min(number, _NUM_RECENT)):
        _blank_label(plain, lines[recent], labels[:, recent])


@kernel
def _blank_label(plain: NDArray[np.uint8], line: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
    if labels[0, 1] >= _MIN_LABELS:
        plain[line[0] : labels[0, 0]] = 32
    if labels[1, 1] >= _MIN_LABELS:
        plain[labels[1, 0] : line[1]] = 32


@kernel
def _find_prefix(
    plain: NDArray[np.uint8], start: int, stop: int, next_start: int, next_stop: int, gap: int
) -> tuple[Any, Any]:
    """Return where the labels end that two lines begin with, or where the lines begin if they have none.

    The lines are compared in any spacing. They must be equal but for one number that rises, with which the label ends,
    or with the last `:`, `]` or the like before the lines differ: `Line 12 of 40:`. With a `gap` of 1 no number
    is needed; with more nothing may be before it.
    """
    place, next_place, edge, next_edge = start, next_start, start, next_start
    number, next_number = start, next_start
    may_stay, may_rise = gap == 1, True
    while True:
        is_within = place < stop and next_place < min(next_stop, next_start + _MAX_LABEL)
        if is_within and plain[place] == plain[next_place]:
            byte = plain[place]
            place, next_place = place + 1, next_place + 1
            if is_digit(byte):
                continue
            if byte == ord("(") and place - 1 > start and is_alphanumeric(plain[place - 2]):
                return edge, next_edge  # a call
            if may_stay and _ends_label(plain, place, stop) and _ends_label(plain, next_place, next_stop):
                edge, next_edge = place, next_place
        elif may_rise and (gap == 1 or number == start):
            value, place = _read_number(plain, number, stop)
            next_value, next_place = _read_number(plain, next_number, next_stop)
            if not 0 <= value < next_value:
                return edge, next_edge
            may_rise, may_stay = False, True
            if not (_goes_on(plain, place, stop) or _goes_on(plain, next_place, next_stop)):
                edge, next_edge = place, next_place
        else:
            return edge, next_edge
        place, next_place = _skip_blanks(plain, place, stop), _skip_blanks(plain, next_place, next_stop)
        number, next_number = place, next_place


@kernel
def _find_suffix(
    plain: NDArray[np.uint8], start: int, stop: int, next_start: int, next_stop: int
) -> tuple[Any, Any, Any]:
    """Return where the labels begin that two lines end with, or where the lines end if they have none, and the step.

    They are separate words: a number, what is the same before it (`#L`), and signs after it.
    """
    place, next_place = stop, next_stop
    while place > start and next_place > next_start and plain[place - 1] == plain[next_place - 1]:
        if is_alphanumeric(plain[place - 1]) or plain[place - 1] >= 0x80:
            break
        place, next_place = place - 1, next_place - 1
    number, next_number = place, next_place
    while number > start and is_digit(plain[number - 1]):
        number -= 1
    while next_number > next_start and is_digit(plain[next_number - 1]):
        next_number -= 1
    value, _ = _read_number(plain, number, place)
    next_value, _ = _read_number(plain, next_number, next_place)
    if not 0 <= value < next_value:
        return stop, next_stop, np.int64(0)
    while number > start and next_number > next_start and plain[number - 1] == plain[next_number - 1] > 32:
        if plain[number - 1] == ord("(") and number - 1 > start and is_alphanumeric(plain[number - 2]):
            break  # a call
        number, next_number = number - 1, next_number - 1
    if _is_inside(plain, start, number) or _is_inside(plain, next_start, next_number):
        return stop, next_stop, np.int64(0)
    return number, next_number, next_value - value


@kernel
def _is_inside(plain: NDArray[np.uint8], start: int, place: int) -> Any:
    return place > start and plain[place - 1] > 32


@kernel
def _read_number(plain: NDArray[np.uint8], position: int, stop: int) -> tuple[Any, Any]:
    """Read a number of up to 18 digits: -1 if there is none, and where it ends, with `:5` or `.12` after it."""
    end, value = position, np.int64(0)
    while end < stop and end < position + 18 and is_digit(plain[end]):
        value = value * 10 + (plain[end] - ord("0"))
        end += 1
    if end == position:
        return np.int64(NOT_FOUND), end
    while end + 1 < stop and is_digit(plain[end + 1]):
        if not (is_digit(plain[end]) or ord(",") <= plain[end] <= ord("/") or plain[end] == ord(":")):
            break
        end += 1
    return value, end + 1 if end < stop and is_digit(plain[end]) else end


@kernel
def _goes_on(plain: NDArray[np.uint8], end: int, stop: int) -> Any:
    """Whether digits are part of a word, `3rd`, or of a quantity, `3%`."""
    if end >= stop:
        return False
    byte, after = plain[end], plain[min(end + 1, stop - 1)]
    is_han_sign = (byte == 0xE3 and after == 0x80) or (byte == 0xEF and after == 0xBC)
    is_sign = is_han_sign or byte == 0xE2 or (byte == 0xC2 and after == 0xA0)  # arrows, bars, spaces
    return is_alphanumeric(byte) or (byte >= 0x80 and not is_sign) or byte == ord("%")


@kernel
def _ends_label(plain: NDArray[np.uint8], place: int, stop: int) -> Any:
    """Whether a label can end here: after a colon, but not between two, or between another mark and a space."""
    mark = plain[place - 1]
    if mark == ord(":"):
        return place >= stop or plain[place] != mark
    is_wide_colon = mark == 0x9A and place > 2 and plain[place - 2] == 0xBC and plain[place - 3] == 0xEF
    is_mark = mark == ord("]") or mark == ord(")") or mark == ord("|") or mark == ord("$") or mark == ord(">")
    return is_wide_colon or (is_mark and (place >= stop or plain[place] <= 32))


@kernel
def _skip_blanks(plain: NDArray[np.uint8], position: int, stop: int) -> int:
    while position < stop and plain[position] <= 32:
        position += 1
    return position


@kernel
def find_kind(data: NDArray[np.uint8], position: int, stop: int, kinds: NDArray[np.uint8], kind: np.uint8) -> Any:
    """Return where the next byte of a kind is. An unsigned position is not tested for being negative."""
    place, end = np.uint64(position), np.uint64(stop)
    while place < end and kinds[data[place]] != kind:
        place += np.uint64(1)
    return np.int64(place)


@kernel
def is_digit(byte: np.uint8) -> Any:
    return ord("0") <= byte <= ord("9")


@kernel
def is_alphanumeric(byte: np.uint8) -> Any:
    return ord("a") <= byte | 32 <= ord("z") or ord("0") <= byte <= ord("9")
