"""Third-party tars, JSON Lines and images as a dataset to stream: one pass over them finds where each sample begins.

Of a local tar only the headers are read, about 9 µs for each member. On a store, contents of a megabyte or more are
skipped too; for smaller ones a request for each header would take longer than reading on. JSON Lines are read whole.
Blocks are runs of whole samples of about 4 MiB. Those that the pass has read completely on a store get a checksum and
go to the cache of blocks, so no byte is fetched twice; the others get one when they are fetched. Only the samples
decide where blocks end, so blocks are shuffled in the same order on a disk and on a store. In a folder of images, each
file is a sample: for more than some hundred thousand, tars are better.
"""

from __future__ import annotations

import io
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.media import ANY_IMAGE, IMAGE, IMAGE_EXTENSIONS, LABEL, MEMBER, SAMPLES, get_extension
from gristmill.core.records import KEY, TEXT_TYPE
from gristmill.core.splits import TRAIN, split_by_folder
from gristmill.shards.block_index import LaneBlocks
from gristmill.shards.manifest import Manifest
from gristmill.shards.stored_files import MANIFEST, Schema
from gristmill.storage.files import open_input
from gristmill.storage.paths import find_files
from gristmill.storage.tar_scan import TarScan, split_sample_name
from gristmill.storage.user_cache import name_block
from gristmill.stream.lanes.table_blocks import ForeignDataset, ForeignFile, describe_shard, identify_file, index_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gristmill.shards.stored_files import Shard
    from gristmill.storage.paths import ListedFile
    from gristmill.storage.user_cache import BlockCache
    from gristmill.stream.lanes.table_blocks import Arrays


SOURCE = "tars"
_DESCRIBING = ("txt", "caption", "cls", "json", "jsonl", "csv")
"""Extensions of files that describe the images in the same folder."""
_BLOCK_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_SKIPPED_BYTES = 1 << 20
"""The least that is skipped by a new request: fetching it takes as long as the request, about 20 ms."""
_FIRST_BYTES = 64 << 10
_MOST_BYTES = 8 << 20
"""The first request at a place, and the largest one: each further request doubles what was read there."""


def names_tars(path: str) -> bool:
    """Whether a path names tars, not the folder of a dataset: `shards/a-{000..099}.tar`, `shards/*.tar`."""
    return path.endswith(".tar") and not Path(path, MANIFEST).is_file()


def names_lines(path: str) -> bool:
    """Whether a path names files of JSON Lines: `data/*.jsonl`."""
    return path.endswith(".jsonl") and not Path(path, MANIFEST).is_file()


def describe_samples(pattern: str, open_cache: Callable[[], BlockCache]) -> ForeignDataset:
    """Describe tars or JSON Lines as a dataset of samples. The cache keeps what is fetched from a store."""
    files, is_tar = find_files(pattern), names_tars(pattern)
    cache = open_cache() if any("://" in file.path for file in files) else None
    make = partial(_index_samples, find_starts=_find_starts if is_tar else _find_lines, cache=cache)
    indexes = index_files(files, "tars" if is_tar else "lines", make, _is_usable)
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
    source = SOURCE if is_tar else "lines"
    manifest = Manifest(
        kind=SAMPLES,
        format="webdataset" if is_tar else "jsonl",
        schema=Schema.of(pa.schema([])),
        splits={
            "train": {source: [describe_shard(file, int(described[file.path].blocks.rows.sum())) for file in files]}
        },
        books={},
        recipe={},
        versions={},
    ).seal()
    return ForeignDataset(files[0].path[: -len(files[0].relative)], manifest, described)


def describe_images(path: str) -> ForeignDataset:
    """Describe a folder of images as a dataset of samples, with the columns, splits and keys that a recipe reads.

    The first folder may name a split, and the last one the class, if there are several: `train/cats/1.png`.
    """
    listed = find_files(path)
    files = [file for file in listed if get_extension(file.relative) in IMAGE_EXTENSIONS]
    if other := next((file for file in listed if get_extension(file.relative) in _DESCRIBING), None):
        raise UsageError(
            f"{other.path} describes the images of this folder, and a stream of a folder has images and classes alone",
            help="write them with a recipe: `read` and `write: {format: webdataset}`, and stream its output",
        )
    described = {}
    for file in files:
        ends = np.array([0, file.num_bytes], np.int64)
        blocks = LaneBlocks(np.zeros(1, np.int64), ends[:1], ends[1:], np.ones(1, np.int64), np.zeros(1, np.uint64))
        described[file.path] = ForeignFile(identify_file(file), file.version, blocks, ends)
    split_names = split_by_folder([file.relative for file in files])
    shards: dict[str, dict[str, list[Shard]]] = {}
    for file, split in zip(files, split_names, strict=True):
        shards.setdefault(split or TRAIN, {}).setdefault("images", []).append(describe_shard(file, 1))
    fields = [pa.field(KEY, TEXT_TYPE), pa.field(IMAGE, pa.large_binary(), metadata={MEMBER: ANY_IMAGE})]
    pairs = zip(files, split_names, strict=True)
    folders = [file.relative.split("/")[1 if split else 0 : -1] for file, split in pairs]
    if all(folders) and len({parts[-1] for parts in folders}) > 1:
        fields.append(pa.field(LABEL, TEXT_TYPE))
    manifest = Manifest(
        kind=SAMPLES,
        format=IMAGE,
        schema=Schema.of(pa.schema(fields)),
        splits=shards,
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


def _index_samples(
    file: ListedFile, find_starts: Callable[[BinaryIO, str], Iterator[int]], cache: BlockCache | None
) -> Arrays:
    if cache is None or "://" not in file.path:
        with open_input(file.path) as stream:
            return {"starts": np.array(list(find_starts(stream, file.path)), np.int64), "xxh3": np.empty(0, np.uint64)}
    stored_stream = _StoredStream(file)
    starts: list[int] = []
    checksums: list[int] = []

    def end_block(start: int, stop: int) -> None:
        block = stored_stream.take_until(start, stop)
        checksums.append(0 if block is None else xxhash.xxh3_64_intdigest(block))
        if block is not None:
            cache.keep_block(name_block(identify_file(file), start, stop - start), block, checksums[-1])

    block_start = None
    for place in find_starts(cast("BinaryIO", stored_stream), file.path):
        starts.append(place)
        block_start = place if block_start is None else block_start
        if place >= block_start + _BLOCK_BYTES:
            end_block(block_start, place)
            block_start = place
    if block_start is not None and starts[-1] > block_start:
        end_block(block_start, starts[-1])
    return {"starts": np.array(starts, np.int64), "xxh3": np.array(checksums, np.uint64)}


def _find_lines(stream: BinaryIO, path: str) -> Iterator[int]:
    """Yield where each line that is not blank begins, and then where the last one ends."""
    place, end = 0, None
    for line in _read_lines(stream):
        if not line.isspace():
            yield place
            end = place + len(line)
        place += len(line)
    if end is None:
        raise UsageError(f"{path}: it has no line", help="a sample is a JSON object in one line")
    yield end


def _read_lines(stream: BinaryIO) -> Iterator[bytes]:
    parts: list[bytes] = []  # the line whose end was not read yet
    while piece := stream.read(_READ_BYTES):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield b"".join([*parts, end, b"\n"])
            parts = []
        parts.append(rest)
    if last := b"".join(parts):
        yield last


def _is_usable(index: Arrays, file: ListedFile) -> bool:
    """Whether a stored index can be right: it decides which bytes of the tar are read."""
    starts, checksums = index.get("starts"), index.get("xxh3")
    if starts is None or checksums is None or starts.dtype != np.int64 or starts.ndim != 1 or len(starts) < 2:
        return False
    if starts[0] < 0 or starts[-1] > file.num_bytes or (np.diff(starts) <= 0).any():
        return False
    num_checksums = len(find_block_ends(starts)) if "://" in file.path else 0
    return checksums.dtype == np.uint64 and checksums.shape == (num_checksums,)


def _find_starts(stream: BinaryIO, path: str) -> Iterator[int]:
    """Yield where each sample of a tar begins, and then where the last one ends."""
    scan = TarScan(stream)
    end, current = 0, None
    for member in scan.members():
        if member.is_lost():
            break
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
            f"{path}: {scan.fault}", help="write it again, or read it with a recipe, which keeps the other members"
        )
    if current is None:
        raise UsageError(f"{path}: it has no sample", help="members of a sample have a name and an extension")
    yield end


class _StoredStream(io.RawIOBase):
    """A file on a store, read by ranges of one version. What was read last is kept, and long gaps are skipped."""

    def __init__(self, file: ListedFile) -> None:
        from gristmill.storage.stores.open_store import open_store  # noqa: PLC0415  (local files need none of it)

        super().__init__()
        self._store, self._key = open_store(file.path)
        self._file = file
        self._position = 0
        self._kept = bytearray()
        self._kept_start = 0
        self._first = 0
        """Where the last request began that did not read on."""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.num_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        num_bytes = self._file.num_bytes
        start, stop = self._position, num_bytes if size is None or size < 0 else min(self._position + size, num_bytes)
        if stop <= start:
            return b""
        end = self._kept_start + len(self._kept)
        if not self._kept_start <= start <= end + _SKIPPED_BYTES:
            self._kept.clear()
            self._kept_start = self._first = end = start
        while end < stop:
            most = min(max(end - self._first, _FIRST_BYTES), _MOST_BYTES)
            piece = self._store.read(self._key, end, min(max(end + most, stop), num_bytes), version=self._file.version)
            if not piece:
                break
            self._kept += piece
            end += len(piece)
        data = bytes(self._kept[start - self._kept_start : stop - self._kept_start])
        self._position += len(data)
        return data

    def take_until(self, start: int, stop: int) -> bytes | None:
        """Return the bytes of a block, None if some were not read. What came before its end is forgotten."""
        is_whole = self._kept_start <= start and stop <= self._kept_start + len(self._kept)
        block = bytes(self._kept[start - self._kept_start : stop - self._kept_start]) if is_whole else None
        forgotten = max(0, stop - self._kept_start)
        del self._kept[:forgotten]
        self._kept_start += forgotten
        return block
