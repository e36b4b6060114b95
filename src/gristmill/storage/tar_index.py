r"""An index of the members of a tar: the offset of each, so that any of them can be read without those before it.

One format serves both uses: cutting a large tar for several workers, and reading rows of a shard at random. It is built
from the headers alone (`tar_scan`) and kept in a work folder, never next to a user's tar: 33 bytes a member and its
name.

    gristmill tar index 1\n
    {"members": …, "names_bytes": …, "tar_bytes": …, "fault": …, "xxh3": …}\n
    one record a member, then all names
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import xxhash

from gristmill.core.errors import DamagedDatasetError
from gristmill.storage.files import open_input
from gristmill.storage.tar_scan import MAX_OFFSET, TarMember, TarScan, decode_name, read_content

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


_MAGIC = b"gristmill tar index 1\n"
_RECORD = np.dtype([("header", "<u8"), ("data", "<u8"), ("size", "<u8"), ("name_end", "<u8"), ("kind", "S1")])
_PACK = struct.Struct("<QQQQc")
_MEMBERS_AT_ONCE = 4096
_MAX_HEAD_BYTES = 1 << 16


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The second line of an index file."""

    members: int
    names_bytes: int
    tar_bytes: int
    fault: str | None
    xxh3: str


class TarIndex:
    """The members of a tar, addressable by number."""

    def __init__(self, records: NDArray[np.void], names: bytes | memoryview, tar_bytes: int, fault: str | None) -> None:
        self._records = records
        self._names = names
        self.tar_bytes = tar_bytes
        self.fault = fault
        """The first damage in the tar, if any."""

    def __len__(self) -> int:
        return len(self._records)

    def members(self, first: int = 0, stop: int | None = None) -> Iterator[TarMember]:
        """Yield the members from number `first` on, in order."""
        stop = len(self) if stop is None else min(stop, len(self))
        for start in range(first, stop, _MEMBERS_AT_ONCE):
            records = self._records[start : min(start + _MEMBERS_AT_ONCE, stop)].tolist()
            name_start = int(self._records[start - 1]["name_end"]) if start else 0
            for header, data, size, name_end, kind in records:
                # NumPy drops the zero of an old header's type.
                yield TarMember(decode_name(bytes(self._names[name_start:name_end])), size, data, header, kind or b"\0")
                name_start = name_end

    def header_offsets(self, numbers: list[int]) -> list[int]:
        """Return the offsets of the headers of these members."""
        offsets: list[int] = self._records["header"][numbers].tolist()
        return offsets

    def to_bytes(self) -> bytes:
        """Return the index as the content of a file."""
        body = self._records.tobytes() + bytes(self._names)
        head = _Head(
            members=len(self),
            names_bytes=len(self._names),
            tar_bytes=self.tar_bytes,
            fault=self.fault,
            xxh3=xxhash.xxh3_64_hexdigest(body),
        )
        return _MAGIC + msgspec.json.encode(head) + b"\n" + body


class TarIndexBuilder:
    """Collects members into an index: 33 bytes each and its name."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._names = bytearray()

    def add(self, member: TarMember) -> None:
        """Append the next member."""
        self._names += member.name.encode("utf-8", "surrogateescape")
        self._records += _PACK.pack(member.header, member.data, member.size, len(self._names), member.kind)

    def build(self, tar_bytes: int, fault: str | None) -> TarIndex:
        """Return the index of all members."""
        return TarIndex(np.frombuffer(bytes(self._records), _RECORD), bytes(self._names), tar_bytes, fault)


def index_tar(path: str) -> TarIndex:
    """Build the index of a plain tar from its headers."""
    builder = TarIndexBuilder()
    with open_input(path) as file:
        scan = TarScan(file)
        for member in scan.members():
            builder.add(member)
    return builder.build(scan.num_bytes, scan.fault)


def load_tar_index(path: Path) -> TarIndex:
    """Map an index file into memory and check it: no member is outside of the tar or out of order.

    Raises:
        DamagedDatasetError: The file is damaged.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is not an index of a tar")
            head = msgspec.json.decode(file.readline(_MAX_HEAD_BYTES), type=_Head)
            start = file.tell()
        sizes = (head.members, head.names_bytes, head.tar_bytes)
        if min(sizes) < 0 or path.stat().st_size != start + head.members * _RECORD.itemsize + head.names_bytes:
            raise ValueError("it does not have the size that its header states")
        content: Any = np.memmap(path, np.uint8, "r", start) if head.members else np.empty(0, np.uint8)
        if xxhash.xxh3_64_hexdigest(memoryview(content)) != head.xxh3:
            raise ValueError("its checksum is wrong")
        border = head.members * _RECORD.itemsize
        records = content[:border].view(_RECORD)
        _check_records(records, head)
    except (OSError, ValueError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DamagedDatasetError(
            f"{path}: the index of a tar cannot be used: {error}",
            help="run with --overwrite to rebuild it from the tar",
        ) from error
    return TarIndex(records, memoryview(content[border:]), head.tar_bytes, head.fault)


def _check_records(records: NDArray[np.void], head: _Head) -> None:
    header, data, size, name_end = (records[name] for name in ("header", "data", "size", "name_end"))
    most = np.uint64(MAX_OFFSET)
    if len(records) and max(header.max(), data.max(), size.max(), name_end.max()) > most:
        raise ValueError("a number in it is out of range")
    is_ordered = (header <= data).all() and (header[1:] >= (data + size)[:-1]).all()
    is_inside = (data <= head.tar_bytes).all() and ((data + size)[:-1] <= head.tar_bytes).all()
    if not (is_ordered and is_inside and (np.diff(name_end.astype(np.int64)) >= 0).all()):
        raise ValueError("its members are not in order")
    if (int(name_end[-1]) if len(records) else 0) != head.names_bytes:
        raise ValueError("its names are incomplete")


class PlainTar:
    """The members of a plain tar with their content, found by an index or by a scan of its headers."""

    def __init__(self, path: str, index: TarIndex | None = None, first: int = 0) -> None:
        """Open nothing yet. `first` is the number of the first member to return, if there is an index."""
        self.fault: str | None = None
        """The first damage in the tar; set after the last member."""
        self._path = path
        self._index = index
        self._first = first
        self._file: BinaryIO | None = None
        self._scan: TarScan | None = None

    def __enter__(self) -> PlainTar:
        self._file = open_input(self._path)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._file is not None:
            self._file.close()

    def members(self) -> Iterator[TarMember]:
        """Yield the members in order, from number `first` on if there is an index."""
        assert self._file is not None
        if self._index is not None:
            yield from self._index.members(self._first)
            self.fault = self._index.fault
            return
        self._scan = TarScan(self._file)
        yield from self._scan.members()
        self.fault = self._scan.fault

    def content(self, member: TarMember) -> bytes | None:
        """Return the bytes of a member; None if the tar ends in the middle."""
        assert self._file is not None
        return read_content(self._file, member) if self._scan is None else self._scan.content(member)
