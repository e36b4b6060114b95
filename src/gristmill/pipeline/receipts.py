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
    """What a task left behind. `result` is the task's own account, kept as JSON: a third of the memory."""

    fingerprint: str
    result: msgspec.Raw


class Receipts:
    """The receipts of one output folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, bytes] = {}
        self._fd: int | None = None
        self._synced = monotonic()
        self._load()

    def get(self, fingerprint: str, kind: type[T]) -> T | None:
        """The result of a task, if it is done."""
        result = self._known.get(fingerprint)
        return None if result is None else msgspec.json.decode(result, type=kind)

    def values(self, kind: type[T]) -> Iterator[T]:
        """All results of one kind."""
        for result in self._known.values():
            yield msgspec.json.decode(result, type=kind)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, fingerprint: str, result: msgspec.Struct) -> None:
        """Append; on disk for certain after `sync`, or within half a second of further additions."""
        if self._fd is None:
            make_folder(self._path.parent)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        encoded = msgspec.json.encode(result)
        os.write(self._fd, msgspec.json.encode(Receipt(fingerprint=fingerprint, result=msgspec.Raw(encoded))) + b"\n")
        self._known[fingerprint] = encoded
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

    def _load(self) -> None:
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        torn = lines.pop()  # empty if the last line is whole
        for line in lines:
            try:
                receipt = msgspec.json.decode(line, type=Receipt)
            except msgspec.DecodeError:
                continue
            self._known[receipt.fingerprint] = bytes(receipt.result)
        if torn:
            # So that the next line does not continue it.
            os.truncate(self._path, self._path.stat().st_size - len(torn))
