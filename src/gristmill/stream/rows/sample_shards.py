"""One stored sample by its number in its shard, as a dict of its columns.

A shard on a store or of a third-party table is read by blocks (`block_reader`). A local Arrow shard is mapped. In a
local tar, a sample is one range of the file, read with one call that moves no file position, so threads may share it.
The side file of the shard says where ranges begin, or an index of a third-party tar (`foreign_tars`): 8 bytes a sample.
"""

from __future__ import annotations

import codecs
import io
import os
import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from gristmill.core.errors import CorruptStreamError
from gristmill.core.media import IMAGE, LABEL, make_key
from gristmill.core.records import KEY, ORIGIN, OTHER_FIELDS
from gristmill.shards.canonical import ORIGINS_SCHEMA, SAMPLE_BYTES, make_damage_error, read_mapped_batches
from gristmill.shards.formats.arrow import ArrowShard
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.formats.tar import decode_laid_out
from gristmill.shards.formats.tar_members import MemberLayout
from gristmill.storage.locations import parse_location
from gristmill.storage.tar_scan import TarScan, split_sample_name
from gristmill.stream.rows.block_reader import BlockReader
from gristmill.stream.rows.row_table import StoredTable, check_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.storage.user_cache import BlockCache
    from gristmill.stream.lanes.sources import RowShard


_MAX_OPEN = 256
"""The most tars that are open at a time in a process."""


class MemberError(Exception):
    """A member of a third-party tar is not what its extension says, or a line is no JSON. The file itself is whole."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class _Shard(Protocol):
    def row(self, index: int, /) -> dict[str, Any]: ...


class SampleShards(StoredTable):
    """The samples of all shards of a stream."""

    def __init__(self, shards: list[RowShard], cache: BlockCache | None = None) -> None:
        """Open nothing yet; `cache` is for the blocks of shards that are not local."""
        super().__init__(shards)
        self.blocks = None if cache is None else BlockReader(shards, cache)
        self._open: OrderedDict[int, _Shard] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def is_complete(self) -> bool:
        return self.blocks is None or self.blocks.is_complete

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        if self.blocks is not None:
            self.blocks.request_rows(indices)

    def read(self, index: int) -> dict[str, Any]:
        """Read a sample by its index among the samples of all shards."""
        number = int(np.searchsorted(self.ends, index, side="right"))
        shard = self.shards[number]
        try:
            record = self._find_open(number).row(index - int(self.ends[number]) + shard.rows)
        except (*READ_ERRORS, CorruptStreamError) as error:
            raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
        record.pop(ORIGIN, None)
        if record.get(OTHER_FIELDS) is None:
            record.pop(OTHER_FIELDS, None)
        return record

    def _find_open(self, number: int) -> _Shard:
        with self._lock:
            opened = self._open.pop(number, None)
            if opened is None:
                opened = self._open_shard(number)
            self._open[number] = opened
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)  # closed by the last thread that reads it
            return opened

    def _open_shard(self, number: int) -> _Shard:
        shard = self.shards[number]
        first_index = int(self.ends[number]) - shard.rows
        blocks = self.blocks if shard.is_cached else None
        if blocks is None:
            check_size(shard)
        if shard.format == "arrow":
            if blocks is None:
                return ArrowShard(Path(shard.path), shard.schema)
            return _BlockSamples(blocks, first_index)
        ranges = _FileRanges(shard.path) if blocks is None else _BlockRanges(blocks, first_index)
        starts = _read_starts(shard) if shard.starts is None else shard.starts
        if shard.starts is None and (layout := MemberLayout.find(shard.schema)) is not None:
            return _RangeSamples(ranges, starts, lambda data: decode_laid_out(_read_members(data), layout))
        if shard.format == IMAGE:
            return _RangeSamples(ranges, starts, partial(_describe_image, shard))
        return _RangeSamples(ranges, starts, _decode_line if shard.format == "jsonl" else _decode_foreign)


class _BlockSamples:
    """The rows of an Arrow shard that is read by blocks."""

    def __init__(self, blocks: BlockReader, first_index: int) -> None:
        self._blocks = blocks
        self._first_index = first_index

    def row(self, row: int) -> dict[str, Any]:
        _, row_of_block, block = self._blocks.open_row(self._first_index + row)
        assert block.batch is not None
        record: dict[str, Any] = block.batch.slice(row_of_block, 1).to_pylist()[0]
        return record


class _RangeSamples:
    """The samples of a tar or of JSON Lines, as ranges of its bytes."""

    def __init__(
        self,
        ranges: _FileRanges | _BlockRanges,
        starts: NDArray[np.int64],
        decode: Callable[[bytes], dict[str, Any]],
    ) -> None:
        self._ranges = ranges
        self._starts = starts
        self._decode = decode

    def row(self, row: int) -> dict[str, Any]:
        start, stop = int(self._starts[row]), int(self._starts[row + 1])
        data = self._ranges.read(row, start, stop)
        if len(data) != stop - start:
            raise EOFError("it is shorter than its index")
        return self._decode(data)


class _FileRanges:
    """Ranges of a local file."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The last thread that reads the shard closes it, whenever that is: at the end of Python, `os` may be gone.
        if hasattr(self, "_descriptor"):
            close(self._descriptor)

    def read(self, row: int, start: int, stop: int) -> bytes:  # noqa: ARG002  (the range is enough)
        return os.pread(self._descriptor, stop - start, start)


class _BlockRanges:
    """Ranges of a tar that is read by blocks."""

    def __init__(self, blocks: BlockReader, first_index: int) -> None:
        self._blocks = blocks
        self._first_index = first_index

    def read(self, row: int, start: int, stop: int) -> bytes:
        number, _, block = self._blocks.open_row(self._first_index + row)
        offset = int(self._blocks.offsets[number])
        return bytes(memoryview(block.mapped)[start - offset : stop - offset])


def _read_members(data: bytes) -> dict[str, bytes]:
    """Read the members of one sample by extension, and its key."""
    # A sample is followed by other samples, not by the end mark of a tar.
    scan = TarScan(io.BytesIO(data + bytes(1024)))
    contents: dict[str, bytes] = {}
    key: str | None = None
    for member in scan.members():
        parts = split_sample_name(member.name) if member.isreg() else None
        if parts is None:
            continue
        key = parts[0] if key is None else key
        content = scan.content(member)
        if content is None or parts[0] != key:
            raise EOFError(f"{member.name!r} is not where the index says")
        contents.setdefault(parts[1].lower(), content)
    if key is None or scan.fault is not None:
        raise EOFError(scan.fault or "there is no sample where the index says")
    contents[KEY] = key.encode()
    return contents


def _describe_image(shard: RowShard, data: bytes) -> dict[str, Any]:
    """Make a sample of a file of a folder of images."""
    relative = shard.path[len(shard.folder) :].lstrip("/")
    record: dict[str, Any] = {KEY: make_key(relative), IMAGE: data}
    if LABEL in shard.schema.names:
        record[LABEL] = relative.split("/")[-2]
    return record


def _decode_line(data: bytes) -> dict[str, Any]:
    """Decode a line of JSON, perhaps after a byte order mark and before blank lines."""
    try:
        record = msgspec.json.decode(data.strip().removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise MemberError(f"its line is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise MemberError(f"its line is no object, but {record!r:.80}")
    return record


def _decode_foreign(data: bytes) -> dict[str, Any]:
    """Decode the members of a sample by their extensions, as webdataset does; others stay bytes."""
    contents = _read_members(data)
    record: dict[str, Any] = {KEY: contents.pop(KEY).decode()}
    for name, content in contents.items():
        try:
            record[name] = _decode_member(name.rpartition(".")[2], content)
        except (ValueError, EOFError, RecursionError, msgspec.DecodeError) as error:
            raise MemberError(f"its member .{name} cannot be decoded: {error}", record[KEY]) from error
    return record


def _decode_member(extension: str, content: bytes) -> Any:
    if extension == "json":
        return msgspec.json.decode(content)
    if extension in ("txt", "text", "caption"):
        return content.decode()
    if extension == "npy":
        return np.load(io.BytesIO(content), allow_pickle=False)
    if extension in ("cls", "id", "index"):
        try:
            return int(content)
        except ValueError:
            return content.decode()  # the name of a class
    return content


def _read_starts(shard: RowShard) -> NDArray[np.int64]:
    """Read where each sample of a tar begins, and where the last one ends, from the side file of the shard."""
    if shard.origins is None:
        raise ValueError("it has no index: it was not written as samples")
    sizes = [
        batch.column(SAMPLE_BYTES).to_numpy(zero_copy_only=False)
        for batch in read_mapped_batches(parse_location(shard.origins), ORIGINS_SCHEMA)
        if SAMPLE_BYTES in batch.schema.names
    ]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes), dtype=np.int64)]) if sizes else np.zeros(1, np.int64)
    if len(starts) != shard.rows + 1 or starts[-1] > shard.bytes:
        raise ValueError(f"its index has {len(starts) - 1} samples, not {shard.rows}")
    return starts
