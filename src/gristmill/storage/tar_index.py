r"""An index of the members of a tar: the offset of each, so that any of them can be read without those before it.

One format serves both uses: cutting a large tar for several workers, and reading rows of a shard at random. Only
headers are read, about 9 µs for each plain ustar header; `tarfile` reads the rest (long names, pax), about 30 µs each.
The index is kept in a work folder, never beside a user's tar: 33 bytes a member and its name.

    gristmill tar index 1\n
    {"members": …, "names_bytes": …, "tar_bytes": …, "fault": …, "xxh3": …}\n
    one record a member, then all names
"""

from __future__ import annotations

import os
import re
import struct
import tarfile
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import msgspec
import numpy as np
import xxhash

from gristmill.core.errors import DamagedDatasetError
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

BLOCK = 512
_MAGIC = b"gristmill tar index 1\n"
_RECORD = np.dtype([("header", "<u8"), ("data", "<u8"), ("size", "<u8"), ("name_end", "<u8"), ("kind", "S1")])
_PACK = struct.Struct("<QQQQc")
_WINDOW_BYTES = 64 << 10
_MEMBERS_AT_ONCE = 4096
_MAX_HEAD_BYTES = 1 << 16
_PLAIN_KINDS = (b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7")
_FILE_KINDS = (b"0", b"\0", b"7")
_EXTENSION_KINDS = (b"L", b"K", b"x", b"g", b"X")
_OCTAL = frozenset(b"01234567")
_MAX_PLACE = 1 << 62
_MAX_EXTENSION_BYTES = 16 << 20
"""The largest header with the name or attributes of the next one: `tarfile` reads it into memory."""
_KEY_AND_EXTENSION = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_ORIGIN_KEY = re.compile("[0-9a-f]{16}-[0-9]{12,}-[0-9]+")


def is_origin_key(key: str) -> bool:
    """Whether a sample is named by its origin, as Gristmill names samples without a name."""
    return _ORIGIN_KEY.fullmatch(key) is not None


def split_sample_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into the key of its WebDataset sample and its extension; None if it has no extension.

    >>> split_sample_name("a.b/0001.seg.txt"), split_sample_name("notes")
    (('a.b/0001', 'seg.txt'), None)
    """
    match = _KEY_AND_EXTENSION.fullmatch(name)
    return (match[1], match[2]) if match else None


class TarMember(NamedTuple):
    """The position and size of one member of a tar."""

    name: str
    size: int
    data: int
    """The offset of its content."""
    header: int
    """The offset of its headers."""
    kind: bytes
    """The type in its header; `S` for all sparse files."""

    def isdir(self) -> bool:
        """Whether it is a folder; named as in `tarfile`."""
        return self.kind == b"5"

    def isreg(self) -> bool:
        """Whether it is a regular file; named as in `tarfile`."""
        return self.kind in _FILE_KINDS


class TarScan:
    """A scan of the headers of a plain tar. After the last member, `fault` describes the damage that ended it."""

    def __init__(self, file: BinaryIO) -> None:
        self.fault: str | None = None
        self.num_bytes = file.seek(0, os.SEEK_END)
        self._file = file
        self._window = b""
        self._start = 0
        self._is_ended = False
        """Whether the last header was a block of zeros, the end mark."""

    def members(self) -> Iterator[TarMember]:
        """Yield the members in order."""
        offset = 0
        while (header := self._read_header(offset)) is not None:
            if not any(header):
                self._is_ended = True
                offset += BLOCK
                continue
            member = _parse_plain_header(header, offset)
            if member is None:  # `tarfile` reads everything unusual, from here to the end
                yield from self._read_unusual_members(offset)
                return
            self._is_ended = False
            yield member
            offset = member.data + -(-member.size // BLOCK) * BLOCK
        if self.num_bytes and not self._is_ended:
            self.fault = "the tar file is cut short" if offset > self.num_bytes else "the tar file has no end mark"

    def content(self, member: TarMember) -> bytes | None:
        """Return the bytes of a member; None if the tar ends in the middle. Small members are in the window already."""
        place = member.data - self._start
        if 0 <= place <= len(self._window) - member.size:
            return self._window[place : place + member.size]
        return _read_content(self._file, member, self.num_bytes)

    def _read_header(self, offset: int) -> bytes | None:
        """Return the header at an offset; None if no complete one is left."""
        place = offset - self._start
        if not 0 <= place <= len(self._window) - BLOCK:
            self._file.seek(offset)
            self._window, self._start, place = self._file.read(_WINDOW_BYTES), offset, 0
        header = self._window[place : place + BLOCK]
        return header if len(header) == BLOCK else None

    def _read_unusual_members(self, offset: int) -> Iterator[TarMember]:
        self._file.seek(offset)
        fault: str | None = None
        try:
            archive = tarfile.open(  # noqa: SIM115  (there is nothing to close: the file is the caller's)
                fileobj=cast("IO[bytes]", self._file), mode="r:", tarinfo=self._make_header_class(), ignore_zeros=True
            )
            while (info := archive.next()) is not None:
                check_size(info)
                self._is_ended = False
                kind = b"S" if info.issparse() else info.type
                kind = b"5" if info.isdir() else kind
                # A link, a folder or a device has no content, whatever size its header states.
                has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
                yield TarMember(info.name, info.size if has_content else 0, info.offset_data, info.offset, kind)
                cast("Any", archive).members.clear()  # tarfile keeps every header that it has read
        except TAR_FAULTS as error:
            fault = str(error)
        if not self._is_ended:
            self.fault = fault or "the tar file has no end mark"

    def _note_end(self) -> None:
        self._is_ended = True

    def _make_header_class(self) -> type[tarfile.TarInfo]:
        return make_checked_header(self._note_end)


def _read_content(file: BinaryIO, member: TarMember, tar_bytes: int) -> bytes | None:
    if member.data + member.size > tar_bytes:  # a false size must not allocate memory
        return None
    file.seek(member.data)
    data = file.read(member.size)
    return data if len(data) == member.size else None


class DamagedHeaderError(Exception):
    """A damaged header. `tarfile` would swallow an error of its own class."""


TAR_FAULTS = (tarfile.TarError, DamagedHeaderError, EOFError, RecursionError, ValueError, LookupError, OverflowError)
"""The errors that `tarfile` raises for damaged archives: the last four for invalid numbers and nested headers."""


def check_size(member: tarfile.TarInfo) -> None:
    """Raise `DamagedHeaderError` for a member that no file can hold."""
    if not 0 <= member.size <= member.offset_data + member.size <= _MAX_PLACE:
        raise DamagedHeaderError(f"damaged header: a member of {member.size} bytes")


def make_checked_header(note_end: Callable[[], None]) -> type[tarfile.TarInfo]:
    """Create a header class for `tarfile` that distinguishes damage from an end mark: by itself it stops at both."""

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
            is_end = not any(buf)  # a block of zeros, or nothing more
            if is_end and buf:
                note_end()
            try:
                header = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if is_end:
                    raise
                raise DamagedHeaderError(f"damaged header: {error}") from error
            if header.type in _EXTENSION_KINDS and not 0 <= header.size <= _MAX_EXTENSION_BYTES:
                raise DamagedHeaderError(f"damaged header: a name or attributes of {header.size} bytes")
            return header

    return Header


def _parse_plain_header(header: bytes, offset: int) -> TarMember | None:
    """Parse a header of plain ustar; None for anything else."""
    checksum, size = header[148:156], header[124:136]
    kind = header[156:157]
    if kind not in _PLAIN_KINDS or not _OCTAL.issuperset(size[:11]) or size[11] not in b"\0 ":
        return None
    if not _OCTAL.issuperset(checksum[:6]) or int(checksum[:6], 8) != sum(header) - sum(checksum) + 8 * ord(" "):
        return None
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0]
    path = prefix + b"/" + name if prefix else name
    num_bytes = int(size[:11], 8) if kind in _FILE_KINDS else 0
    is_odd = (kind not in _FILE_KINDS and int(size[:11], 8)) or (kind == b"\0" and path.endswith(b"/"))
    if kind == b"5":
        path = path.rstrip(b"/")
    return None if is_odd else TarMember(_decode(path), num_bytes, offset + BLOCK, offset, kind)


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


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
        """The damage that ended the tar, if any."""

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
                yield TarMember(_decode(bytes(self._names[name_start:name_end])), size, data, header, kind or b"\0")
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
    most = np.uint64(_MAX_PLACE)
    if len(records) and max(header.max(), data.max(), size.max(), name_end.max()) > most:
        raise ValueError("a number in it is out of range")
    is_ordered = (header < data).all() and (header[1:] >= (data + size)[:-1]).all()
    is_inside = (data <= head.tar_bytes).all() and ((data + size)[:-1] <= head.tar_bytes).all()
    if not (is_ordered and is_inside and (np.diff(name_end.astype(np.int64)) >= 0).all()):
        raise ValueError("its members are not in order")
    if (int(name_end[-1]) if len(records) else 0) != head.names_bytes:
        raise ValueError("its names are incomplete")


class PlainTar:
    """The members of a plain tar with their content, found by an index or by a scan of its headers."""

    def __init__(self, path: str, index: TarIndex | None = None, first: int = 0) -> None:
        """Open nothing yet. `first` is the number of the first member to return, if there is an index."""
        self.damage: str | None = None
        """The damage that ended the tar; set after the last member."""
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
            self.damage = self._index.fault
            return
        self._scan = TarScan(self._file)
        yield from self._scan.members()
        self.damage = self._scan.fault

    def content(self, member: TarMember) -> bytes | None:
        """Return the bytes of a member; None if the tar ends in the middle."""
        assert self._file is not None
        if self._index is not None:
            return _read_content(self._file, member, self._index.tar_bytes)
        assert self._scan is not None
        return self._scan.content(member)
