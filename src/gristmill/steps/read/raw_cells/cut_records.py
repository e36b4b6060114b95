"""Cuts of a raw cell into records, with the quarantine of records that no format allows: too large, or not UTF-8."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import QuarantinedRecord
from gristmill.steps.read.batches import is_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.steps.read.raw_cells.delimited_file import RawCell

_SEARCHED_BYTES = 1 << 17
"""How much of a cell is searched for line ends at once."""


@dataclass(slots=True)
class CutRecords:
    """The usable records of a cell, as ranges of its bytes, and the quarantined ones.

    Records are sliced when they are needed: a list of some 10,000 views would keep Python's garbage collector busy.
    """

    raw: RawCell
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    quarantined: list[QuarantinedRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[memoryview]:
        data = self.raw.data
        return (data[start:stop] for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.raw.data[self.starts[index] : self.stops[index]])

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.starts + self.raw.start

    def are_enclosed(self, first: bytes, last: bytes) -> bool:
        """Whether each record begins and ends with these bytes; a carriage return at its end does not count."""
        data = np.frombuffer(self.raw.data, np.uint8)
        if (self.stops <= self.starts).any():
            return False
        ends = data[self.stops - 1]
        returns = (ends == ord("\r")) & (self.stops - self.starts > 1)
        if returns.any():
            ends = data[self.stops - 1 - returns]
        return bool((data[self.starts] == first[0]).all() and (ends == last[0]).all())

    def find_sizes(self, strip: int) -> NDArray[np.int64]:
        """Return the sizes of all records, each without one byte `strip` at its end."""
        return self._find_ends(strip) - self.starts

    def join_records(self, strip: int) -> pa.LargeBinaryArray:
        """Return all records as an array, each without one byte `strip` at its end. Copied once: 0.8 GB/s."""
        ends = self._find_ends(strip)
        offsets = np.zeros(len(ends) + 1, np.int64)
        np.cumsum(ends - self.starts, out=offsets[1:])
        data = self.raw.data
        values = b"".join([data[start:stop] for start, stop in zip(self.starts.tolist(), ends.tolist(), strict=True)])
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        )

    def _find_ends(self, strip: int) -> NDArray[np.int64]:
        ends = self.stops
        if len(ends):
            ends = ends - (np.frombuffer(self.raw.data, np.uint8)[ends - 1] == strip)
        return ends

    def drop(self, rows: list[int]) -> None:
        self.starts, self.stops = np.delete(self.starts, rows), np.delete(self.stops, rows)


def cut_records(raw: RawCell, file: int, separator: bytes, max_record_bytes: int) -> CutRecords:
    """Find the records of a cell, about 2 GB/s."""
    width = len(separator)
    starts = _find_record_starts(raw.data, separator)
    stops = np.append(starts[1:] - width, len(raw.data))
    if starts[-1] == len(raw.data) and not raw.num_left_out:
        starts, stops = starts[:-1], stops[:-1]  # nothing follows the last separator
    cut = CutRecords(raw, starts, stops)
    sizes = stops - starts
    if raw.num_left_out:
        sizes[-1] += raw.num_left_out - (width if raw.is_terminated else 0)
    return quarantine_unreadable(cut, file, sizes, max_record_bytes)


def quarantine_unreadable(cut: CutRecords, file: int, sizes: NDArray[np.int64], max_record_bytes: int) -> CutRecords:
    """Quarantine the records that are too large, by their `sizes`, or not UTF-8."""
    if len(sizes) and sizes.max() > max_record_bytes:
        _quarantine_records(cut, _find_too_large(cut, file, sizes, max_record_bytes))
    if not is_utf8(cut.raw.data):
        _quarantine_records(cut, _find_invalid_utf8(cut, file))
    return cut


def _quarantine_records(cut: CutRecords, by_row: dict[int, QuarantinedRecord]) -> None:
    cut.drop(list(by_row))
    cut.quarantined += by_row.values()


def _find_too_large(cut: CutRecords, file: int, sizes: NDArray[np.int64], most: int) -> dict[int, QuarantinedRecord]:
    return {
        int(index): QuarantinedRecord(
            file=file,
            position=int(cut.positions[index]),
            part=0,
            reason="too_large",
            message=f"{sizes[index]} bytes, more than max_record_bytes ({most})",
            num_bytes=int(sizes[index]),
        )
        for index in np.flatnonzero(sizes > most)
    }


def _find_invalid_utf8(cut: CutRecords, file: int) -> dict[int, QuarantinedRecord]:
    by_row = {}
    for index, record in enumerate(cut):
        try:
            str(record, "utf-8")
        except UnicodeDecodeError as error:
            position = int(cut.positions[index])
            by_row[index] = QuarantinedRecord(file, position, 0, "invalid_utf8", str(error), bytes(record), len(record))
    return by_row


def _find_record_starts(data: memoryview, separator: bytes) -> NDArray[np.int64]:
    """Return where the records of a cell begin: at its start and after each separator."""
    if len(separator) == 1:
        ends = _find_bytes(np.frombuffer(data, np.uint8), separator[0]) + 1
    else:
        ends = np.fromiter((match.end() for match in re.finditer(re.escape(separator), data)), np.int64)
    return np.concatenate((np.zeros(1, np.int64), ends))


def _find_bytes(data: NDArray[np.uint8], value: int) -> NDArray[np.int64]:
    """Return where a byte occurs. A temporary array of a whole cell would leave the cache: twice the time."""
    is_value = np.empty(min(_SEARCHED_BYTES, len(data)), np.bool_)
    positions = [
        np.flatnonzero(np.equal(piece, value, out=is_value[: len(piece)])) + start
        for start in range(0, len(data), _SEARCHED_BYTES)
        if len(piece := data[start : start + _SEARCHED_BYTES])
    ]
    return np.concatenate(positions) if positions else np.empty(0, np.int64)
