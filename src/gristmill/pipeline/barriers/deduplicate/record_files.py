"""Arrays of fixed-size records in files of the work folder: whole, or dealt into partitions.

A file of partitions is a row of blocks, each sorted by partition, and behind them for each block where its partitions
begin. What a task holds before it writes a block is bounded; what it reads of a partition is one piece of each block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.shards.manifest import StoredFile
from gristmill.storage.commit import PendingFile
from gristmill.storage.stored_paths import Count, path_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.pipeline.stages.sink import OutputStem

KEY = np.dtype([("key", "<u8"), ("row", "<u4")])
DIGEST = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u4")])
PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
ALIKE = np.dtype([("first", "<i8"), ("second", "<i8"), ("similarity", "<f8"), ("is_exact", "?")])

_BLOCK_RECORDS = 1 << 21


def make_records(kind: np.dtype[Any], **fields: NDArray[Any]) -> NDArray[Any]:
    """Columns as records."""
    made = np.empty(len(next(iter(fields.values()))), dtype=kind)
    for name, values in fields.items():
        made[name] = values
    return made


def write_records(place: OutputStem, suffix: str, content: NDArray[Any]) -> StoredFile:
    """A file of records."""
    with RecordWriter(place, suffix) as file:
        file.add(content)
        return file.commit()


def read_records(root: Path, file: StoredFile, kind: np.dtype[Any]) -> NDArray[Any]:
    return np.fromfile(file.below(root), dtype=kind)


def map_records(root: Path, path: str, kind: np.dtype[Any] | type, width: int | None = None) -> NDArray[Any]:
    """The records of a file that is not empty, read where they are touched; with `width` so many in each row."""
    found: NDArray[Any] = np.memmap(path_below(root, path), dtype=kind, mode="r")
    return found if width is None else found.reshape(-1, width)


class RecordWriter:
    """A file that takes records piece by piece."""

    def __init__(self, place: OutputStem, suffix: str) -> None:
        self._path = f"{place.stem}{suffix}"
        self._file = PendingFile(place.root / self._path, place.run_id)

    def __enter__(self) -> RecordWriter:
        self._file.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.__exit__(None, None, None)

    def add(self, content: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(content).tobytes())

    def commit(self) -> StoredFile:
        self._file.commit()
        return StoredFile(path=self._path, bytes=self._file.num_bytes, xxh3=self._file.checksum)


class PartitionedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of records by partition."""

    file: StoredFile
    num_records: Count
    num_partitions: Count

    def read(self, root: Path, kind: np.dtype[Any], partition: int) -> Iterator[NDArray[Any]]:
        """The records of one partition, block by block."""
        if not self.num_records:
            return
        path = self.file.below(root)
        bounds = np.fromfile(path, dtype=np.int64, offset=self.num_records * kind.itemsize)
        for block in bounds.reshape(-1, self.num_partitions + 1):
            start, stop = int(block[partition]), int(block[partition + 1])
            if stop > start:
                yield np.fromfile(path, dtype=kind, count=stop - start, offset=start * kind.itemsize)


class PartitionWriter(RecordWriter):
    """A file that takes records with the partition that each belongs to."""

    def __init__(self, place: OutputStem, suffix: str, num_partitions: int) -> None:
        super().__init__(place, suffix)
        self._num_partitions = num_partitions
        self._gathered: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        self._num_gathered = 0
        self._num_written = 0
        self._bounds: list[NDArray[np.int64]] = []

    def __enter__(self) -> PartitionWriter:
        super().__enter__()
        return self

    def scatter(self, content: NDArray[Any], partitions: NDArray[np.int64]) -> None:
        self._gathered.append((content, partitions))
        self._num_gathered += len(content)
        if self._num_gathered >= _BLOCK_RECORDS:
            self._flush()

    def close(self) -> PartitionedFile:
        """Sync and name the file."""
        self._flush()
        for bounds in self._bounds:
            self.add(bounds)
        return PartitionedFile(file=self.commit(), num_records=self._num_written, num_partitions=self._num_partitions)

    def _flush(self) -> None:
        if not self._num_gathered:
            return
        content = np.concatenate([some for some, _ in self._gathered])
        partitions = np.concatenate([some for _, some in self._gathered])
        self._gathered, self._num_gathered = [], 0
        order = np.argsort(partitions, kind="stable")
        self.add(content[order])
        self._bounds.append(self._num_written + np.searchsorted(partitions[order], np.arange(self._num_partitions + 1)))
        self._num_written += len(content)


def find_partitions(keys: NDArray[np.uint64], num_partitions: int) -> NDArray[np.int64]:
    """Which of equal ranges each lies in."""
    return ((keys >> np.uint64(32)) * np.uint64(num_partitions) >> np.uint64(32)).astype(np.int64)
