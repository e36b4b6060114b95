"""Receipts: the proof that a task is done. Only the parent writes them; what has none is done again.

One JSON line a task, appended in groups and synced, keyed by the task's fingerprint. A torn last line is what a crash
leaves; it is dropped, and its task run again. Cost: about 300 bytes a task.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gristmill.storage.commit import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")

_GROUP_SECONDS = 0.5


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a task left behind. `result` is the task's own account, kept as JSON."""

    fingerprint: str
    result: msgspec.Raw


class Receipts:
    """The receipts of one output folder. Only where each lies in the file is held: about 250 bytes a task."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        """Start and size of each one's line."""
        self._end = 0
        self._fd: int | None = None
        self._synced = monotonic()
        self._load()

    def get(self, fingerprint: str, kind: type[T]) -> T | None:
        """The result of a task, if it is done."""
        place = self._places.get(fingerprint)
        if place is None:
            return None
        start, size = place
        receipt = msgspec.json.decode(os.pread(self._open(), size, start), type=Receipt)
        try:
            return msgspec.json.decode(receipt.result, type=kind)
        except msgspec.ValidationError:  # of another version, or it names files outside of the folder: done again
            return None

    def read_results(self, kind: type[T]) -> Iterator[T]:
        """All results, which must be of one kind."""
        for fingerprint in self._places:
            result = self.get(fingerprint, kind)
            if result is not None:
                yield result

    def __len__(self) -> int:
        return len(self._places)

    def add(self, fingerprint: str, result: msgspec.Struct) -> None:
        """Append; on disk for certain after `sync`, or within half a second of further additions."""
        encoded = msgspec.Raw(msgspec.json.encode(result))
        line = msgspec.json.encode(Receipt(fingerprint=fingerprint, result=encoded)) + b"\n"
        left = memoryview(line)
        while left:  # a disk that is nearly full takes a part first, and says so at the next write
            left = left[os.write(self._open(), left) :]
        self._places[fingerprint] = (self._end, len(line))
        self._end += len(line)
        if monotonic() - self._synced > _GROUP_SECONDS:
            self.sync()

    def sync(self) -> None:
        if self._fd is not None:
            os.fsync(self._fd)
        self._synced = monotonic()

    def close(self) -> None:
        if self._fd is not None:
            self.sync()
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            make_folder(self._path.parent)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return self._fd

    def _load(self) -> None:
        try:
            lines = self._path.open("rb")
        except FileNotFoundError:
            return
        with lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    os.truncate(self._path, self._end)  # so that the next line does not continue it
                    return
                try:
                    fingerprint = msgspec.json.decode(line, type=Receipt).fingerprint
                except msgspec.DecodeError:
                    pass
                else:
                    self._places[fingerprint] = (self._end, len(line))
                self._end += len(line)
