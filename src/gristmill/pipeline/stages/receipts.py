"""Receipts: the proof that a task is done. A task without one is run again.

There is one JSON line for each task, under its fingerprint, appended by the parent alone. A worker names its files
before it returns its result; the parent syncs them and their folders (`storage/commit.py`), and only then is the
receipt written. So a receipt never names a file that is not there, not even after a power cut.
Lines are synced in groups: a crash loses at most the last half second, whose tasks are run again. It may also tear the
last line, which is dropped. Cost: about 300 bytes of disk for each task, and 250 of memory.

Where several machines write, or on a store, which cannot append, lines go to segments: what came in 5 seconds, or 1,000
receipts. 64 segments are merged into one, so that a run of a million tasks leaves a few dozen objects. Names tell the
epoch of the lease: segments of a run that was replaced stay, and are read by the next one like all others. With each
segment a run checks whether it was replaced, so that it does not go on to its end in vain.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import msgspec
import xxhash

from gristmill.storage.commit import PendingFile, is_lease_epoch, make_folder, write_file
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import is_remote, open_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from gristmill.storage.locations import Location


T = TypeVar("T")

_GROUP_SECONDS = 0.5
_READ_BYTES = 2048
"""How much is read of a line at first: most receipts are shorter."""
_SEGMENT_SECONDS = 5.0
_SEGMENT_RECEIPTS = 1000
_MERGED_SEGMENTS = 64


class ReceiptLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file: a task, and its result as JSON."""

    fingerprint: str
    result: msgspec.Raw
    checksum: int
    """The xxh3 of both. A line that does not fit is damaged, and its task is run again."""


class Receipts:
    """The receipts in one file. Memory holds only where each line is: a run may have a million tasks.

    One thread may add receipts while others look them up.
    """

    def __init__(self, path: Location) -> None:
        self._path = path
        self._lines: dict[str, int] = {}
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
        receipt = _decode_receipt(content[: content.index(b"\n")])
        try:
            return None if receipt is None else msgspec.json.decode(receipt.result, type=kind)
        except msgspec.ValidationError:  # written by another version, or it names files outside of the folder
            return None

    def read_results(self, kind: type[T]) -> Iterator[T]:
        """Read all results that are of this kind."""
        for start in sorted(self._lines.values()):
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
        return open_stored(str(self._path), os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def _load(self) -> None:
        try:
            lines = os.fdopen(open_stored(str(self._path), os.O_RDWR), "rb")
        except FileNotFoundError:
            return
        with lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    os.ftruncate(lines.fileno(), self._end)  # torn by a crash; the next line must not continue it
                    return
                self._index_line(line)

    def _index_line(self, line: bytes) -> None:
        """Note where a line is that follows those before it."""
        receipt = _decode_receipt(line)
        if receipt is not None:
            self._lines[receipt.fingerprint] = self._end
        self._end += len(line)


def encode_receipt(fingerprint: str, result: msgspec.Struct) -> bytes:
    """Encode a receipt as a line."""
    encoded = msgspec.json.encode(result)
    checksum = _compute_checksum(fingerprint, encoded)
    return (
        msgspec.json.encode(ReceiptLine(fingerprint=fingerprint, result=msgspec.Raw(encoded), checksum=checksum))
        + b"\n"
    )


def _decode_receipt(line: bytes) -> ReceiptLine | None:
    """Decode a line; None if it is damaged."""
    try:
        receipt = msgspec.json.decode(line, type=ReceiptLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return receipt if receipt.checksum == _compute_checksum(receipt.fingerprint, receipt.result) else None


def _compute_checksum(fingerprint: str, result: Buffer) -> int:
    return xxhash.xxh3_64_intdigest(fingerprint.encode() + bytes(result))


class UploadedReceipts(Receipts):
    """The receipts in `path` and in the segments of the folder of that name without its suffix."""

    def __init__(self, path: Location, run_id: str, check_lease: Callable[[], object]) -> None:
        self._folder = path.parent / path.name.removesuffix(".jsonl")
        self._run_id = run_id
        self._check_lease = check_lease
        self._num_pending = 0
        self._uploaded_end = 0
        self._small: list[tuple[Location, int]] = []
        """Segments that are not merged yet, and where each begins in the log."""
        self._number = 0
        super().__init__(path)

    def sync(self) -> None:
        """Upload what was not uploaded yet."""
        if self._end > self._uploaded_end:
            self._check_lease()
            segment = self._name_segment()
            write_file(segment, self._read_log(self._uploaded_end, self._end), self._run_id)
            self._small.append((segment, self._uploaded_end))
            self._uploaded_end, self._num_pending = self._end, 0
            if len(self._small) >= _MERGED_SEGMENTS:
                self._merge()
        self._synced = monotonic()

    def _is_due(self) -> bool:
        self._num_pending += 1
        return self._num_pending >= _SEGMENT_RECEIPTS or monotonic() - self._synced > _SEGMENT_SECONDS

    def _open_log(self) -> int:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())

    def _load(self) -> None:
        segments = sorted(path for path, _ in open_folder(self._folder).list_below() if path.endswith(".jsonl"))
        for segment in [
            *([self._path] if self._path.is_file() else []),
            *(self._folder / segment for segment in segments),
        ]:
            content = segment.read_bytes()
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._open(), rest) :]
            for line in content.splitlines(keepends=True):
                self._index_line(line)
        self._uploaded_end = self._end

    def _merge(self) -> None:
        """Replace the small segments by one. The number of the last one keeps the order."""
        with PendingFile(self._name_segment(), self._run_id) as file:
            file.write(self._read_log(self._small[0][1], self._end))
            file.commit()
        for segment, _ in self._small:
            segment.unlink(missing_ok=True)
        self._small.clear()

    def _name_segment(self) -> Location:
        self._number += 1
        return self._folder / f"{self._run_id}-{self._number:06d}.jsonl"

    def _read_log(self, start: int, stop: int) -> bytes:
        return os.pread(self._open(), stop - start, start)


def open_receipts(path: Location, run_id: str, check_lease: Callable[[], object]) -> Receipts:
    """Open the receipts of an output folder, wherever it is.

    Where several machines can reach it, a run that was replaced may go on for a while, so no two runs may append to one
    file, not even on a file system that could.
    """
    if is_remote(path) or is_lease_epoch(run_id):
        return UploadedReceipts(path, run_id, check_lease)
    return Receipts(Path(path))
