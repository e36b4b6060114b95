"""Cutting a raw cell into records, and setting aside what is wrong with any record whatever its format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.records import BadRecord
from gristmill.steps.read.batches import is_utf8

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.steps.read.separated import RawCell


@dataclass(slots=True)
class CutRecords:
    """The records of a cell that are not too large and valid UTF-8, and the others."""

    records: list[memoryview]
    """Views of the cell's bytes: they hold no longer than those."""
    positions: NDArray[np.int64]
    bad: list[BadRecord] = field(default_factory=list)


def cut_records(raw: RawCell, file: int, separator: bytes, max_record_bytes: int) -> CutRecords:
    """Split a cell, about 2 GB/s."""
    width = len(separator)
    starts = _record_starts(raw.data, separator)
    stops = np.append(starts[1:] - width, len(raw.data) - (width if raw.is_terminated and not raw.num_left_out else 0))
    records = [raw.data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    if not records:
        return CutRecords([], starts)
    sizes = stops - starts
    positions = raw.start + starts
    if raw.num_left_out:
        sizes[-1] += raw.num_left_out - (width if raw.is_terminated else 0)
    cut = CutRecords(records, positions)
    if sizes.max() > max_record_bytes:
        _set_aside(cut, _too_large(cut, file, sizes, max_record_bytes))
    if not is_utf8(raw.data):
        _set_aside(cut, _not_utf8(cut, file))
    return cut


def _set_aside(cut: CutRecords, bad: dict[int, BadRecord]) -> None:
    kept = [index for index in range(len(cut.records)) if index not in bad]
    cut.records = [cut.records[index] for index in kept]
    cut.positions = cut.positions[kept]
    cut.bad += bad.values()


def _too_large(cut: CutRecords, file: int, sizes: NDArray[np.int64], most: int) -> dict[int, BadRecord]:
    return {
        int(index): BadRecord(
            file=file,
            position=int(cut.positions[index]),
            part=0,
            reason="too_large",
            message=f"{sizes[index]} bytes, more than max_record_bytes ({most})",
            num_bytes=int(sizes[index]),
        )
        for index in np.flatnonzero(sizes > most)
    }


def _not_utf8(cut: CutRecords, file: int) -> dict[int, BadRecord]:
    bad = {}
    for index, record in enumerate(cut.records):
        try:
            str(record, "utf-8")
        except UnicodeDecodeError as error:
            position = int(cut.positions[index])
            bad[index] = BadRecord(file, position, 0, "invalid_utf8", str(error), bytes(record), len(record))
    return bad


def _record_starts(data: memoryview, separator: bytes) -> NDArray[np.int64]:
    """Where the records of a cell begin."""
    if not data:
        return np.zeros(0, np.int64)
    if len(separator) == 1:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == separator[0])
    else:
        found = re.finditer(re.escape(separator), data)
        ends = np.fromiter((match.end() - 1 for match in found), np.int64)
    starts = np.concatenate(([0], ends + 1))
    return starts if starts[-1] < len(data) else starts[:-1]
