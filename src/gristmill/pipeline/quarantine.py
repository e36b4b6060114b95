"""What was set aside, as JSON lines: where it came from, at which step, why, and the record itself.

A record that is not UTF-8 is kept in base64; one above 1 MiB by its origin only.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.core.records import BadRecord

MAX_KEPT_BYTES = 1 << 20
# Reasons that lie in the machine and not in the record: another run might keep it.
ENVIRONMENT_REASONS = frozenset({"worker_died", "timeout", "out_of_memory"})
MIN_ALLOWED = 10
"""So few records may always be set aside."""


def num_allowed(num_records: int, max_quarantine: float) -> float:
    """How many of a source's records may be set aside."""
    return max(MIN_ALLOWED, max_quarantine * num_records)


def to_line(source: str, path: str | None, step: str, bad: BadRecord) -> bytes:
    """One line of a quarantine file. Without a path it holds the file's id, for `name_file`."""
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
    if bad.raw is not None and len(bad.raw) <= MAX_KEPT_BYTES:
        try:
            entry["record"] = bad.raw.decode()
        except UnicodeDecodeError:
            entry["record_base64"] = base64.b64encode(bad.raw).decode()
    return msgspec.json.encode(entry) + b"\n"


def name_file(line: bytes, paths: Mapping[int, str]) -> bytes:
    """The line with the path of its file, where a task that read no files knew only the id."""
    entry = msgspec.json.decode(line)
    if isinstance(entry["file"], int):
        entry["file"] = paths[entry["file"]]
    return msgspec.json.encode(entry) + b"\n"
