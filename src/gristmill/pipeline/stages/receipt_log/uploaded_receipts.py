"""Receipts where several machines write, or on a store, which cannot append: an unnamed local log, kept in segments.

A segment holds what came in 5 seconds, or 1,000 receipts; a crash loses at most the last one, whose tasks are run
again. 64 segments are merged into one, so that a run of a million tasks leaves a few dozen objects. Names tell the
epoch of the lease: segments of a run that was replaced stay, and are read by the next one like all others. With each
segment a run looks whether it was replaced, so that it does not go on to its end in vain.
"""

from __future__ import annotations

import os
import tempfile
from time import monotonic
from typing import TYPE_CHECKING

from gristmill.pipeline.stages.receipt_log.receipts import Receipts
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.locations import list_files_below

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.storage.locations import Location

_SEGMENT_SECONDS = 5.0
_SEGMENT_RECEIPTS = 1000
_MERGED_SEGMENTS = 64


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
        segments = sorted(path for path, _ in list_files_below(self._folder) if path.endswith(".jsonl"))
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
