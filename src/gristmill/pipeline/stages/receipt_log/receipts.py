"""Receipts: the proof that a task is done. A task without one is run again.

There is one JSON line for each task, under its fingerprint, appended by the parent alone. A worker names its files
before it returns its result; the parent syncs them and their folders (`storage/sync_thread.py`), and only then is the
receipt written. So a receipt never names a file that is not there, not even after a power cut.
Lines are synced in groups: a crash loses at most the last half second, whose tasks are run again. It may also tear the
last line, which is dropped. Cost: about 300 bytes of disk for each task, and 24 of memory.
"""

from __future__ import annotations

import os
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gristmill.storage.commit import make_folder
from gristmill.storage.listing.packed_index import PackedIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.locations import Location

T = TypeVar("T")

_GROUP_SECONDS = 0.5
_READ_BYTES = 2048
"""How much is read of a line at first: most receipts are shorter."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file: a task, and its result as JSON."""

    fingerprint: str
    result: msgspec.Raw


class Receipts:
    """The receipts in one file. Memory holds only where each line is: a run may have a million tasks.

    One thread may add receipts while others look them up.
    """

    def __init__(self, path: Location) -> None:
        self._path = path
        self._lines = PackedIndex()
        """Where each receipt's line begins, by fingerprint."""
        self._end = 0
        self._fd: int | None = None
        self._opening = Lock()
        self._synced = monotonic()
        self._load()

    def get(self, fingerprint: str, kind: type[T]) -> T | None:
        """Return the result of a task, if it is done."""
        start = self._lines.get(fingerprint)
        return None if start is None else self._read(start, kind)

    def _read(self, start: int, kind: type[T]) -> T | None:
        """Read the result on the line that begins here."""
        num_bytes = _READ_BYTES
        while b"\n" not in (content := os.pread(self._open(), num_bytes, start)):
            num_bytes *= 8
        receipt = msgspec.json.decode(content[: content.index(b"\n")], type=Receipt)
        try:
            return msgspec.json.decode(receipt.result, type=kind)
        except msgspec.ValidationError:  # written by another version, or it names files outside of the folder
            return None

    def read_results(self, kind: type[T]) -> Iterator[T]:
        """Read all results that are of this kind."""
        for start in sorted(self._lines.values().tolist()):
            result = self._read(start, kind)
            if result is not None:
                yield result

    def add(self, fingerprint: str, result: msgspec.Struct) -> None:
        """Append a receipt. It is safe on disk after `sync`; later additions sync at least every half second."""
        line = encode_receipt(fingerprint, result)
        rest = memoryview(line)
        while rest:  # a disk that is nearly full writes a part first, and fails at the next write
            rest = rest[os.write(self._open(), rest) :]
        self._lines[fingerprint] = self._end
        self._end += len(line)
        if self._is_due():
            self.sync()

    def _is_due(self) -> bool:
        """Tell whether it is time to sync, after an addition."""
        return monotonic() - self._synced > _GROUP_SECONDS

    def sync(self) -> None:
        """Make all receipts so far safe."""
        if self._fd is not None:
            os.fsync(self._fd)
        self._synced = monotonic()

    def close(self) -> None:
        if self._fd is not None:
            self.sync()
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        with self._opening:
            if self._fd is None:
                self._fd = self._open_log()
            return self._fd

    def _open_log(self) -> int:
        make_folder(self._path.parent)
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _load(self) -> None:
        try:
            lines = self._path.open("rb")
        except FileNotFoundError:
            return
        with lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    os.truncate(self._path, self._end)  # torn by a crash; the next line must not continue it
                    return
                self._index_line(line)

    def _index_line(self, line: bytes) -> None:
        """Note where a line is that follows those before it."""
        try:
            fingerprint = msgspec.json.decode(line, type=Receipt).fingerprint
        except msgspec.DecodeError:  # damaged: the task is run again
            pass
        else:
            self._lines[fingerprint] = self._end
        self._end += len(line)


def encode_receipt(fingerprint: str, result: msgspec.Struct) -> bytes:
    """Encode a receipt as a line."""
    encoded = msgspec.Raw(msgspec.json.encode(result))
    return msgspec.json.encode(Receipt(fingerprint=fingerprint, result=encoded)) + b"\n"
