"""Tars of others as a dataset to stream: one pass over their headers finds where each sample begins.

Of a local tar only the headers are read, about 9 µs a member. A tar on a store is read once from its beginning to its
end, because a request for each header would take longer; so its blocks, runs of whole samples of about 4 MiB, have
checksums. The samples alone decide where blocks end, so blocks are shuffled in the same order on a disk and on a store.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.media import SAMPLES
from gristmill.shards.lane_blocks import LaneBlocks
from gristmill.shards.manifests.manifest import Manifest
from gristmill.shards.manifests.stored_files import MANIFEST, Schema
from gristmill.storage.files import open_input
from gristmill.storage.listing.paths import find_files
from gristmill.storage.tars.tar_scan import TarScan, split_sample_name
from gristmill.stream.foreign.file_index import (
    ForeignDataset,
    ForeignFile,
    describe_shard,
    identify_file,
    index_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.storage.listing.paths import ListedFile
    from gristmill.stream.foreign.file_index import Arrays

SOURCE = "tars"
_BLOCK_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_KEPT_BYTES = 1 << 20
"""What is kept behind the reader: `tarfile` goes back to the header that it could not read the plain way."""


def names_tars(path: str) -> bool:
    """Whether a path names tars, not the folder of a dataset: `shards/a-{000..099}.tar`, `shards/*.tar`."""
    return path.endswith(".tar") and not Path(path, MANIFEST).is_file()


def describe_tars(pattern: str) -> ForeignDataset:
    """Describe tars as a dataset of samples."""
    files = find_files(pattern)
    indexes = index_files(files, "tars", _index_tar, _is_usable)
    described = {}
    for file, index in zip(files, indexes, strict=True):
        starts = index["starts"]
        ends = find_block_ends(starts)
        borders = starts[[0, *ends]]
        blocks = LaneBlocks(
            shard=np.zeros(len(ends), np.int64),
            offset=borders[:-1],
            bytes=np.diff(borders),
            rows=np.diff([0, *ends]),
            xxh3=index["xxh3"] if len(index["xxh3"]) else np.zeros(len(ends), np.uint64),
        )
        described[file.path] = ForeignFile(identify_file(file), file.version, blocks, starts)
    manifest = Manifest(
        kind=SAMPLES,
        format="webdataset",
        schema=Schema.of(pa.schema([])),
        splits={
            "train": {SOURCE: [describe_shard(file, int(described[file.path].blocks.rows.sum())) for file in files]}
        },
        books={},
        recipe={},
        versions={},
    ).seal()
    return ForeignDataset(files[0].path[: -len(files[0].relative)], manifest, described)


def find_block_ends(starts: NDArray[np.int64]) -> list[int]:
    """Find the number of samples until the end of each block: the first at which it has 4 MiB, or the last one."""
    ends: list[int] = []
    first, num_samples = 0, len(starts) - 1
    while first < num_samples:
        first = int(min(max(np.searchsorted(starts, starts[first] + _BLOCK_BYTES), first + 1), num_samples))
        ends.append(first)
    return ends


def _index_tar(file: ListedFile) -> Arrays:
    with open_input(file.path) as stream:
        if "://" not in file.path:
            starts = list(_find_starts(TarScan(stream), file.path))
            return {"starts": np.array(starts, np.int64), "xxh3": np.empty(0, np.uint64)}
        stored_stream = _KeptStream(stream, file.num_bytes)
        starts, checksums = [], []
        block_start = None
        for place in _find_starts(TarScan(cast("BinaryIO", stored_stream)), file.path):
            starts.append(place)
            block_start = place if block_start is None else block_start
            if place >= block_start + _BLOCK_BYTES:
                checksums.append(xxhash.xxh3_64_intdigest(stored_stream.take_until(block_start, place)))
                block_start = place
        if block_start is not None and starts[-1] > block_start:
            checksums.append(xxhash.xxh3_64_intdigest(stored_stream.take_until(block_start, starts[-1])))
    return {"starts": np.array(starts, np.int64), "xxh3": np.array(checksums, np.uint64)}


def _is_usable(index: Arrays, file: ListedFile) -> bool:
    """Whether a stored index can be right: it decides which bytes of the tar are read."""
    starts, checksums = index.get("starts"), index.get("xxh3")
    if starts is None or checksums is None or starts.dtype != np.int64 or starts.ndim != 1 or len(starts) < 2:
        return False
    if starts[0] < 0 or starts[-1] > file.num_bytes or (np.diff(starts) <= 0).any():
        return False
    num_checksums = len(find_block_ends(starts)) if "://" in file.path else 0
    return checksums.dtype == np.uint64 and checksums.shape == (num_checksums,)


def _find_starts(scan: TarScan, path: str) -> Iterator[int]:
    """Yield where each sample begins, and then where the last one ends."""
    end, current = 0, None
    for member in scan.members():
        if not member.isreg():
            continue
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise UsageError(f"{path}: the member {member.name!r} points outside the archive", help="remove it")
        parts = split_sample_name(member.name)
        if parts is None:
            continue
        if parts[0] != current:
            yield member.header
            current = parts[0]
        end = member.data + -(-member.size // 512) * 512
    if scan.fault is not None:
        raise UsageError(
            f"{path}: {scan.fault}", help="write it again, or read it with a recipe, which keeps what came before"
        )
    if current is None:
        raise UsageError(f"{path}: it has no sample", help="members of a sample have a name and an extension")
    yield end


class _KeptStream(io.RawIOBase):
    """A stream that is read in order and keeps what was read last, so that a scan may skip and go back a little."""

    def __init__(self, stream: BinaryIO, num_bytes: int) -> None:
        super().__init__()
        self._stream = stream
        self._num_bytes = num_bytes
        self._position = 0
        self._kept = bytearray()
        self._kept_start = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        stop = self._num_bytes if size is None or size < 0 else min(self._position + size, self._num_bytes)
        start, self._position = self._position, max(stop, self._position)
        return bytes(self._see(start, stop))

    def take_until(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a block, and forget what came before its end, but for a little."""
        block = memoryview(bytes(self._see(start, stop)))
        forgotten = max(0, stop - _KEPT_BYTES - self._kept_start)
        del self._kept[:forgotten]
        self._kept_start += forgotten
        return block

    def _see(self, start: int, stop: int) -> bytearray:
        if start < self._kept_start:
            raise UsageError("its headers are not in order", help="write it again")
        while self._kept_start + len(self._kept) < stop:
            piece = self._stream.read(min(_READ_BYTES, self._num_bytes - self._kept_start - len(self._kept)))
            if not piece:
                break
            self._kept += piece
        return self._kept[start - self._kept_start : stop - self._kept_start]
