"""Where the elements of a JSON array begin and end, without decoding them: about 1 GB/s a core.

The kernel follows strings and brackets only; the decoder decides whether an element is valid JSON. A closing bracket
that does not fit closes the nearest bracket that it fits: after `{"a": [1, 2}` the next element is found again, and
only the broken one is quarantined. Kinds of brackets are stored for 256 levels; deeper ones are only counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


_OPEN, _FIRST, _NEXT, _INSIDE, _STRING, _ESCAPE, _CLOSED = range(7)
"""The modes of the scanner: at the opening bracket, before the first element, after a comma, in an element, in a string
of an element, after a backslash in a string, after the closing bracket."""
_MODE, _DEPTH, _CLOSER, _COUNT, _END, _BROKEN, _NUM_FIELDS = range(7)
"""The fields of the scanner's state."""
_MAX_KINDS = 256
_QUOTE, _BACKSLASH, _COMMA = 0x22, 0x5C, 0x2C
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = 0x5B, 0x5D, 0x7B, 0x7D
_SPACE, _TAB, _LINE_END, _RETURN = 0x20, 0x09, 0x0A, 0x0D
_START_CAPACITY = 1 << 12
_NONE = np.zeros(0, np.int64)


@dataclass(slots=True)
class Elements:
    """The elements in a run of bytes."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    """The end of each element, without white space; equal to its start if there is nothing between two commas."""
    unfinished: int | None
    """The start of a last element that does not end in these bytes."""
    end: int | None
    """The end of the array: the offset after its closing bracket."""


class ElementScanner:
    """A scanner of the bytes of an array, or of an object, in pieces of any size.

    Members of an object are separated like elements of an array, so they are found in the same way.
    """

    def __init__(self, *, is_open: bool, is_object: bool = False) -> None:
        """Start at the opening bracket or, with `is_open`, at an element."""
        self._state = np.zeros(_NUM_FIELDS, np.int64)
        self._state[_MODE] = _FIRST if is_open else _OPEN
        self._state[_CLOSER] = _CLOSE_OBJECT if is_object else _CLOSE_LIST
        self._kinds = np.zeros(_MAX_KINDS, np.uint8)

    @property
    def is_closed(self) -> bool:
        return bool(self._state[_MODE] == _CLOSED)

    @property
    def end(self) -> int:
        """The offset after the closing bracket, in the bytes that were scanned last."""
        return int(self._state[_END])

    @property
    def is_broken(self) -> bool:
        """Whether that bracket is after a comma, or in an element that is not closed: elements may follow."""
        return bool(self._state[_BROKEN])

    def find_start(self, data: memoryview | bytes | bytearray, begin: int, end: int, at_least: int) -> int | None:
        """Find the first element that begins at or after `at_least`; scans up to it, or up to `end`."""
        start = _scan_elements(
            np.frombuffer(data, np.uint8), begin, end, at_least, self._state, self._kinds, _NONE, _NONE
        )
        return start if start >= 0 else None

    def split(self, data: memoryview | bytes) -> Elements:
        """Return all elements of a run of bytes."""
        values = np.frombuffer(data, np.uint8)
        starts, stops = np.empty(_START_CAPACITY, np.int64), np.empty(_START_CAPACITY, np.int64)
        begin = 0
        self._state[_COUNT] = 0
        while (
            begin := _scan_elements(values, begin, len(values), len(values), self._state, self._kinds, starts, stops)
        ) >= 0:
            starts, stops = np.resize(starts, 4 * len(starts)), np.resize(stops, 4 * len(stops))
        count = int(self._state[_COUNT])
        is_unfinished = self._state[_MODE] in (_INSIDE, _STRING, _ESCAPE)
        return Elements(
            starts[:count],
            stops[:count],
            int(starts[count]) if is_unfinished else None,
            self.end if self.is_closed else None,
        )


@kernel
def _is_space(byte: int) -> bool:
    return byte in (_SPACE, _LINE_END, _RETURN, _TAB)


@kernel
def _trim_end(data: NDArray[np.uint8], start: int, stop: int) -> int:
    while stop > start and _is_space(data[stop - 1]):
        stop -= 1
    return stop


@kernel
def _scan_elements(
    data: NDArray[np.uint8],
    begin: int,
    end: int,
    at_least: int,
    state: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> int:
    """Scan until an element begins at or after `at_least`, or `starts` is full; return that place, or -1 at the end.

    `state` is kept between calls. With empty arrays nothing is noted.
    """
    mode, depth, closer, count = state[_MODE], state[_DEPTH], state[_CLOSER], state[_COUNT]
    capacity = len(starts)
    next_start = -1
    at = begin
    while at < end and mode != _CLOSED:
        if mode == _STRING:  # where most bytes are
            while at < end and data[at] != _QUOTE and data[at] != _BACKSLASH:
                at += 1
            if at < end:
                mode = _INSIDE if data[at] == _QUOTE else _ESCAPE
                at += 1
            continue
        if mode in (_ESCAPE, _OPEN):
            mode = _STRING if mode == _ESCAPE else _FIRST
            at += 1
            continue
        byte = data[at]
        if mode in (_FIRST, _NEXT):
            if _is_space(byte):
                at += 1
                continue
            is_empty = byte == _COMMA or (mode == _NEXT and byte == closer)
            if is_empty or byte != closer:
                if (at >= at_least and not is_empty) or (capacity > 0 and count == capacity):
                    next_start = at
                    break
                if capacity > 0:
                    starts[count] = at
            if is_empty and byte == closer:
                state[_BROKEN] = 1
            mode = _INSIDE
            if not is_empty and byte == closer:
                mode = _CLOSED
                state[_END] = at + 1
                break
        is_end = byte == _COMMA and depth == 0
        if byte == _QUOTE:
            mode = _STRING
        elif byte in (_OPEN_LIST, _OPEN_OBJECT):
            if depth < _MAX_KINDS:
                kinds[depth] = byte + 2  # the bracket that closes it: in ASCII ] is [ + 2, and } is { + 2
            depth += 1
        elif byte in (_CLOSE_LIST, _CLOSE_OBJECT):
            level = depth - 1
            if level < _MAX_KINDS:
                while level >= 0 and kinds[level] != byte:
                    level -= 1
            if level >= 0:
                depth = level
            elif byte == closer:  # the array ends here: open brackets of the element were never closed
                is_end = True
                if depth > 0:
                    state[_BROKEN] = 1
                depth = 0
        if is_end:
            if capacity > 0:
                stops[count] = _trim_end(data, starts[count], at)
                count += 1
            mode = _NEXT
            if byte == closer:
                mode = _CLOSED
                state[_END] = at + 1
        at += 1
    state[_MODE], state[_DEPTH], state[_COUNT] = mode, depth, count
    return next_start
