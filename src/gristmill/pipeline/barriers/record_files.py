"""Arrays of fixed-size records in files of the work folder: whole, or scattered into partitions.

A partitioned file is a sequence of blocks, each sorted by partition; after them it says, for each block, where its
partitions begin. A task that writes holds at most one block. A task that reads a partition reads one piece of each
block. On a store receipts say too where partitions begin: looking it up would be a request for each piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from gristmill.core.seeds import find_ranges
from gristmill.shards.stored_files import StoredFile
from gristmill.steps.deduplicate.partitions import sort_by_partition, sort_runs_by_partition
from gristmill.storage.commit import PendingFile
from gristmill.storage.files import read_array
from gristmill.storage.locations import (
    Count,
    is_remote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.storage.locations import Location

KEY = np.dtype([("key", "<u8"), ("row", "<u4")])
DIGEST = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u4")])
PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
SIMILAR = np.dtype([("first", "<i8"), ("second", "<i8"), ("estimate", "<f8")])
CROWDED = np.dtype([("key", "<u8"), ("document", "<i8")])
NUMBER = np.dtype([("document", "<i8")])

CHUNK_BYTES = 32 << 10
"""A piece of a partition is read with what is around it in its first and last chunk, and a receipt has 8 bytes each."""
_BLOCK_BYTES = 24 << 20


def compute_chunk_checksums(content: NDArray[np.uint8]) -> bytes:
    """Compute the checksum of each chunk of a file that begins here."""
    view = content.data
    chunks = (view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
    return b"".join(map(xxhash.xxh3_64_digest, chunks))


def make_records(kind: np.dtype[Any], **fields: NDArray[Any]) -> NDArray[Any]:
    """Make an array of records from one array for each field."""
    records = np.empty(len(next(iter(fields.values()))), dtype=kind)
    for name, values in fields.items():
        records[name] = values
    return records


def write_records(stem: OutputStem, suffix: str, records: NDArray[Any]) -> StoredFile:
    """Write records to a new file."""
    with RecordWriter(stem, suffix) as writer:
        writer.add(records)
        return writer.commit()


def scatter_records(
    stem: OutputStem, suffix: str, records: NDArray[Any], partitions: NDArray[np.int64], num_partitions: int
) -> PartitionedFile:
    """Write records to a new partitioned file, each with the number of its partition."""
    with PartitionWriter(stem, suffix, num_partitions, notes_bounds=True) as writer:
        writer.scatter(records, partitions)
        return writer.close()


def read_records(root: Location, file: StoredFile, kind: np.dtype[Any]) -> NDArray[Any]:
    """Read all records of a file, which is checked first."""
    return map_records(root, file, kind).copy()


def map_records(root: Location, file: StoredFile, kind: np.dtype[Any]) -> NDArray[Any]:
    """Map or fetch all records of a file, which is checked first. They cannot be written to."""
    return np.frombuffer(file.read_intact(root) if file.bytes else b"", kind)


class RecordWriter:
    """Writes records to a file, one array after another."""

    def __init__(self, stem: OutputStem, suffix: str) -> None:
        self._path = f"{stem.stem}{suffix}"
        self._file = PendingFile(stem.root / self._path, stem.run_id)
        self._syncs = stem.syncs
        self._chunk = xxhash.xxh3_64()
        self._checksums = bytearray()

    def __enter__(self) -> RecordWriter:
        self._file.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.__exit__(None, None, None)

    def add(self, records: NDArray[Any]) -> None:
        """Append records to the file."""
        if records.size:
            content = np.ascontiguousarray(records).reshape(-1).view(np.uint8)
            self._note_chunks(content)
            self._file.write(content.data)

    @property
    def checksums(self) -> bytes:
        """The checksum of each chunk of what was added (`PartitionedFile`)."""
        return bytes(self._checksums) + (self._chunk.digest() if self._file.num_bytes % CHUNK_BYTES else b"")

    def commit(self) -> StoredFile:
        """Give the file its name, and sync it if the stem says so."""
        self._file.commit(sync=self._syncs)
        return StoredFile(path=self._path, bytes=self._file.num_bytes, xxh3=self._file.checksum)

    def _note_chunks(self, content: NDArray[np.uint8]) -> None:
        begun = self._file.num_bytes % CHUNK_BYTES
        if begun:
            self._chunk.update(content[: CHUNK_BYTES - begun].data)
            if begun + len(content) < CHUNK_BYTES:
                return
            self._checksums += self._chunk.digest()
            content = content[CHUNK_BYTES - begun :]
        num_whole = len(content) // CHUNK_BYTES * CHUNK_BYTES
        self._checksums += compute_chunk_checksums(content[:num_whole])
        self._chunk = xxhash.xxh3_64(content[num_whole:].data)


class PartitionedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of records by partition."""

    file: StoredFile
    num_records: Count
    num_partitions: Count
    checksums: bytes
    """The xxh3 of each `CHUNK_BYTES` of the file: what is read of it is checked by chunks."""
    bounds: bytes = b""
    """What follows the records of the file, if it is on a store and was noted."""

    def __post_init__(self) -> None:
        if len(self.bounds) % (8 * (self.num_partitions + 1)):
            raise ValueError(f"{len(self.bounds)} bytes are no bounds of {self.num_partitions} partitions")

    def read_all(self, root: Location, kind: np.dtype[Any]) -> NDArray[Any]:
        """Read the records of all partitions at once."""
        return self.read_located(root, kind, 0, self.num_records)

    def read_with_partitions(self, root: Location, kind: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Read the records of all partitions at once, and for each record the number of its partition."""
        if not self.num_records:
            return np.empty(0, kind), np.empty(0, np.int64)
        sizes = np.diff(self._read_bounds(root, kind), axis=1)
        partitions = np.tile(np.arange(self.num_partitions), len(sizes))
        return self.read_all(root, kind), np.repeat(partitions, sizes.reshape(-1))

    def read(
        self, root: Location, kind: np.dtype[Any], partition: int, num_partitions: int | None = None, count: int = 1
    ) -> Iterator[NDArray[Any]]:
        """Read the records of one partition, or of `count` consecutive ones, block by block.

        There may be fewer partitions than in the file, or more, if the first field of the records is a hash that they
        are divided by; both numbers are powers of two.
        """
        num_partitions = num_partitions or self.num_partitions
        for start, stop in self.locate(root, kind, partition, num_partitions, count):
            records = self.read_located(root, kind, start, stop)
            if num_partitions > self.num_partitions:
                hashes = records[next(iter(kind.names or ()))]
                records = records[find_ranges(hashes, num_partitions) == partition]
            yield records

    def locate(
        self, root: Location, kind: np.dtype[Any], partition: int, num_partitions: int, count: int
    ) -> list[tuple[int, int]]:
        """Find the records of the partitions of the file that `read` has to look at: from, to, for each block."""
        if not self.num_records:
            return []
        if count == num_partitions:
            return [(0, self.num_records)]
        first = partition * self.num_partitions // num_partitions
        last = max((partition + count) * self.num_partitions // num_partitions, first + 1)
        bounds = self._read_bounds(root, kind)[:, [first, last]].tolist()
        return [(start, stop) for start, stop in bounds if stop > start]

    def read_located(self, root: Location, kind: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
        """Read consecutive records of the file."""
        records = np.empty(stop - start, kind)
        if len(records):
            records.view(np.uint8)[:] = self._read_intact(root, start * kind.itemsize, stop * kind.itemsize)
        return records

    def _read_intact(self, root: Location, start: int, stop: int) -> NDArray[np.uint8]:
        """Read a range of the file, with what is before and after it in its chunks."""
        first, last = start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)
        end = min(last * CHUNK_BYTES, self.file.bytes)
        try:
            content = read_array(self.file.below(root), np.uint8, first * CHUNK_BYTES, end - first * CHUNK_BYTES)
        except FileNotFoundError:
            raise self.file.make_work_error(root, "is missing") from None
        if compute_chunk_checksums(content) != self.checksums[8 * first : 8 * last]:
            raise self.file.make_work_error(root, f"is damaged between the bytes {first * CHUNK_BYTES:,} and {end:,}")
        return content[start - first * CHUNK_BYTES : stop - first * CHUNK_BYTES]

    def _read_bounds(self, root: Location, kind: np.dtype[Any]) -> NDArray[np.int64]:
        """Read where the partitions of each block begin, and where its last one ends."""
        if self.bounds:
            bounds = np.frombuffer(self.bounds, np.int64)
        else:
            bounds = self._read_intact(root, self.num_records * kind.itemsize, self.file.bytes).copy().view(np.int64)
        return bounds.reshape(-1, self.num_partitions + 1)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task of a stage."""

    stage: str
    scattered: dict[str, PartitionedFile] = {}
    whole: dict[str, StoredFile] = {}
    counts: dict[str, Count] = {}
    numbers: dict[str, list[int]] = {}

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [*(each.file for each in self.scattered.values()), *self.whole.values()]


def view_partitioned(
    data: NDArray[np.uint8], kind: np.dtype[Any], num_records: int, num_partitions: int
) -> NDArray[Any] | None:
    """View the records in the content of a partitioned file; None if it is no such file."""
    num_bytes, bounds_bytes = num_records * kind.itemsize, 8 * (num_partitions + 1)
    if num_bytes > len(data) or (len(data) - num_bytes) % bounds_bytes:
        return None
    bounds = np.frombuffer(data[num_bytes:].tobytes(), np.int64)
    is_covered = not num_records if not len(bounds) else (int(bounds[0]), int(bounds[-1])) == (0, num_records)
    if not is_covered or np.any(np.diff(bounds) < 0):
        return None
    return data[:num_bytes].view(kind)


class PartitionWriter(RecordWriter):
    """Writes records to a partitioned file, a block as soon as there are `block_bytes`."""

    def __init__(
        self,
        stem: OutputStem,
        suffix: str,
        num_partitions: int,
        *,
        notes_bounds: bool = False,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        super().__init__(stem, suffix)
        self._num_partitions = num_partitions
        self._notes_bounds = notes_bounds and is_remote(stem.root)
        self._block_bytes = block_bytes
        self._buffer: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._num_buffered = 0
        self._num_written = 0
        self._bounds: list[NDArray[np.int64]] = []

    def __enter__(self) -> PartitionWriter:
        super().__enter__()
        return self

    def scatter(self, records: NDArray[Any], partitions: NDArray[np.int64]) -> None:
        """Add records, each with the number of its partition."""
        self._buffer.append((records, partitions))
        self._num_buffered += len(records)
        if self._num_buffered * records.itemsize >= self._block_bytes:
            self._write_block()

    def close(self) -> PartitionedFile:
        """Write what is left and the bounds of all blocks, and give the file its name."""
        self._write_block()
        for bounds in self._bounds:
            self.add(bounds)
        return PartitionedFile(
            file=self.commit(),
            num_records=self._num_written,
            num_partitions=self._num_partitions,
            checksums=self.checksums,
            bounds=b"".join(bounds.tobytes() for bounds in self._bounds) if self._notes_bounds else b"",
        )

    def _write_block(self) -> None:
        if not self._num_buffered:
            return
        ordered, starts = self._sort_buffered()
        self._buffer, self._num_buffered = [], 0
        self.add(ordered)
        self._bounds.append(self._num_written + starts)
        self._num_written += len(ordered)

    def _sort_buffered(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        records, partitions = self._buffer[0]
        if len(self._buffer) > 1:
            records = np.concatenate([records for records, _ in self._buffer])
            partitions = np.concatenate([partitions for _, partitions in self._buffer])
        return sort_by_partition(records, partitions, self._num_partitions)


class RunWriter(PartitionWriter):
    """Writes numbers of which runs belong to one partition: to name it for each would cost more than the numbers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sizes: list[NDArray[np.int64]] = []

    def __enter__(self) -> RunWriter:
        super().__enter__()
        return self

    def scatter_runs(
        self, numbers: NDArray[np.uint64], partitions: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        """Add runs of numbers, each with the number of its partition and its size."""
        self._sizes.append(sizes)
        self.scatter(numbers, partitions)

    def _sort_buffered(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        numbers, partitions = zip(*self._buffer, strict=True)
        sizes, self._sizes = self._sizes, []
        return sort_runs_by_partition(numbers, partitions, sizes, self._num_partitions)
