"""Quarantined records as JSON lines: where each came from, at which step, why, and the record itself.

A record that is not UTF-8 is kept in base64. Of a record above 1 MiB only the origin is kept.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.errors import TooManyBadError
from gristmill.core.records import ORIGIN
from gristmill.pipeline.stages.outputs.observers import SliceObserver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import QuarantinedRecord, Records, StepResult
    from gristmill.pipeline.stages.outputs.observers import LineFile, StepPlace
    from gristmill.readers.cells import CellBatch


MAX_RECORD_BYTES = 1 << 20
MAX_CONSECUTIVE_QUARANTINED = 100
"""A task fails when this many records of a cell in a row are quarantined: then the step is wrong, not the records."""
_MAX_SHOWN = 12
ENVIRONMENT_REASONS = frozenset({"worker_died", "timeout", "out_of_memory"})
"""Reasons that depend on the machine and not on the record: another run might keep it."""


class QuarantinedRuns(msgspec.Struct, frozen=True):
    """The lengths of runs of quarantined records of a step: at the start, the longest, and at the end.

    >>> QuarantinedRuns(0, 2, 1).followed_by(QuarantinedRuns(3, 3, 3, is_all=True))
    QuarantinedRuns(first=0, longest=4, last=4, is_all=False)
    """

    first: int = 0
    longest: int = 0
    last: int = 0
    is_all: bool = False
    """Whether there is no good record among them."""

    def followed_by(self, other: QuarantinedRuns) -> QuarantinedRuns:
        """Return the runs of these records and the `other` ones together."""
        return QuarantinedRuns(
            self.first + other.first if self.is_all else self.first,
            max(self.longest, other.longest, self.last + other.first),
            self.last + other.last if other.is_all else other.last,
            self.is_all and other.is_all,
        )


_NO_RECORDS = QuarantinedRuns(is_all=True)


class QuarantineWriter(SliceObserver):
    """Writes the quarantined records of one slice, and raises `TooManyBadError` where too many follow each other.

    `entry_step` is the name under which records are listed that could not be read, and `paths` are the relative paths
    of input files by id. A run of quarantined records ends with its cell, wherever slices begin.
    """

    def __init__(self, entry_step: str, max_quarantine: float, paths: Mapping[int, str], file: LineFile) -> None:
        self._entry_step = entry_step
        self._max_quarantine = max_quarantine
        self._paths = paths
        self._file = file
        self._runs: dict[int, QuarantinedRuns] = {}
        """Runs in the current cell, by the number of the step."""

    def after_read(self, source: str, cell: CellBatch) -> None:
        self._add(source, -1, self._entry_step, cell.rows, cell.quarantined)

    def after_step(self, place: StepPlace, before: Records, applied: StepResult) -> None:
        self._add(place.source, place.number, place.step.name, before.rows, applied.quarantined)

    def end_cell(self) -> None:
        self._runs.clear()

    def commit(self) -> Mapping[str, Any]:
        return {"quarantine": self._file.commit()}

    def _add(
        self, source: str, number: int, step: str, batch: pa.RecordBatch, records: Sequence[QuarantinedRecord]
    ) -> None:
        """Quarantine records of a step; `batch` is what the step got, with these records or without them."""
        if not records and not batch.num_rows:
            return
        runs = QuarantinedRuns()
        if records:
            for record in records:
                self._file.write(encode_line(source, self._paths.get(record.file), step, record))
            runs = measure_quarantined_runs(batch.column(ORIGIN), records)
        runs = self._runs.get(number, _NO_RECORDS).followed_by(runs)
        self._runs[number] = runs
        # Where all records may be quarantined, a run of them means nothing.
        if records and runs.longest >= MAX_CONSECUTIVE_QUARANTINED and self._max_quarantine < 1:
            last = records[-1]
            file = self._paths.get(last.file)
            raise TooManyBadError(
                f"step {step}: {runs.longest} records in a row could not be used; the last, at {file} position "
                f"{last.position}: {last.message}",
                help="fix the step or the recipe's field names; what was finished is kept",
                source=source,
                files=[file],
                # This task leaves no file: some of them, for the report of the run.
                lines=[
                    encode_line(source, self._paths.get(bad.file), step, bad).decode() for bad in records[-_MAX_SHOWN:]
                ],
            )


def measure_quarantined_runs(origin_column: pa.StructArray, bad: Sequence[QuarantinedRecord]) -> QuarantinedRuns:
    """Measure how many bad records follow each other.

    `origin_column` holds the origins of records, the bad ones among them or not. Records are put in the order
    of their origins.

    >>> from gristmill.core.records import documents
    >>> from gristmill.core.records import QuarantinedRecord
    >>> seen = documents(["a", "b", "c", "d", "e"]).column("origin")
    >>> bad = [QuarantinedRecord(**seen[row].as_py(), reason="", message="") for row in (0, 1, 3)]
    >>> measure_quarantined_runs(seen, bad)
    QuarantinedRuns(first=2, longest=2, last=0, is_all=False)
    """
    names = ("file", "position", "part")
    origins = [origin_column.field(name).to_numpy().astype(np.uint64) for name in names]
    bad_origins = [np.array([getattr(record, name) for record in bad], np.uint64) for name in names]
    is_good = ~np.isin(_hash_origins(*origins), _hash_origins(*bad_origins))
    keys = [
        np.concatenate([values[is_good], bad_values]) for values, bad_values in zip(origins, bad_origins, strict=True)
    ]
    is_bad = np.repeat([False, True], [int(np.count_nonzero(is_good)), len(bad)])[np.lexsort(keys[::-1])]
    ends = np.flatnonzero(~is_bad)
    if not len(ends):
        return QuarantinedRuns(len(bad), len(bad), len(bad), is_all=True)
    gaps = np.diff(ends, prepend=-1) - 1
    last = len(is_bad) - int(ends[-1]) - 1
    return QuarantinedRuns(int(ends[0]), max(int(gaps.max()), last), last)


def _hash_origins(
    file: NDArray[np.uint64], position: NDArray[np.uint64], part: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Hash each origin to one number. A collision would only miscount a run by one."""
    hashes: NDArray[np.uint64] = file ^ (position * np.uint64(0x9E3779B97F4A7C15)) ^ (part << np.uint64(40))
    return hashes


def encode_line(source: str, path: str | None, step: str, bad: QuarantinedRecord) -> bytes:
    """Encode one line of a quarantine file. Without a path it holds the file's id, for `fill_in_path`."""
    entry: dict[str, object] = {
        "source": source,
        "file": bad.file if path is None else path,
        "position": bad.position,
        "part": bad.part,
        "step": step,
        "reason": bad.reason,
        "error": bad.message,
        "bytes": bad.num_bytes or len(bad.raw or b""),
    }
    if bad.num_records > 1:
        entry["records"] = bad.num_records
    if bad.traceback:
        entry["traceback"] = bad.traceback
    if bad.raw is not None and len(bad.raw) <= MAX_RECORD_BYTES:
        try:
            entry["record"] = bad.raw.decode()
        except UnicodeDecodeError:
            entry["record_base64"] = base64.b64encode(bad.raw).decode()
    return msgspec.json.encode(entry) + b"\n"


def fill_in_path(line: bytes, paths: Mapping[int, str]) -> bytes:
    """Put the path of its file into a line of a task that read no files, and so knew only the file's id."""
    entry = msgspec.json.decode(line)
    if isinstance(entry["file"], int):
        entry["file"] = paths[entry["file"]]
    return msgspec.json.encode(entry) + b"\n"
