"""What was set aside, as JSON lines: where it came from, at which step, why, and the record itself.

A record that is not UTF-8 is kept in base64; one above 1 MiB by its origin only.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import QuarantinedRecord

MAX_RECORD_BYTES = 1 << 20
# Reasons that lie in the machine and not in the record: another run might keep it.
ENVIRONMENT_REASONS = frozenset({"worker_died", "timeout", "out_of_memory"})


def measure_quarantined_runs(seen: pa.StructArray, bad: Sequence[QuarantinedRecord]) -> tuple[int, int, int]:
    """How many bad records stand in a row: at the start, at most, and at the end.

    `seen` are the origins of records, the bad ones among them or not. Records are taken in the order of their places.

    >>> from gristmill.core.sample_batches import documents
    >>> from gristmill.core.records import QuarantinedRecord
    >>> seen = documents(["a", "b", "c", "d", "e"]).column("origin")
    >>> bad = [QuarantinedRecord(**seen[row].as_py(), reason="", message="") for row in (0, 1, 3)]
    >>> measure_quarantined_runs(seen, bad)
    (2, 2, 0)
    """
    names = ("file", "position", "part")
    places = [seen.field(name).to_numpy().astype(np.uint64) for name in names]
    bad_places = [np.array([getattr(record, name) for record in bad], np.uint64) for name in names]
    good = ~np.isin(_hash_origins(*places), _hash_origins(*bad_places))
    keys = [np.concatenate([some[good], others]) for some, others in zip(places, bad_places, strict=True)]
    is_bad = np.repeat([False, True], [int(np.count_nonzero(good)), len(bad)])[np.lexsort(keys[::-1])]
    ends = np.flatnonzero(~is_bad)
    if not len(ends):
        return len(bad), len(bad), len(bad)
    gaps = np.diff(ends, prepend=-1) - 1
    last = len(is_bad) - int(ends[-1]) - 1
    return int(ends[0]), max(int(gaps.max()), last), last


def _hash_origins(
    file: NDArray[np.uint64], position: NDArray[np.uint64], part: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """One number for each place; that two are equal is not to be feared."""
    mixed: NDArray[np.uint64] = file ^ (position * np.uint64(0x9E3779B97F4A7C15)) ^ (part << np.uint64(40))
    return mixed


def encode_line(source: str, path: str | None, step: str, bad: QuarantinedRecord) -> bytes:
    """One line of a quarantine file. Without a path it holds the file's id, for `fill_in_path`."""
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
    """The line with the path of its file, where a task that read no files knew only the id."""
    entry = msgspec.json.decode(line)
    if isinstance(entry["file"], int):
        entry["file"] = paths[entry["file"]]
    return msgspec.json.encode(entry) + b"\n"
