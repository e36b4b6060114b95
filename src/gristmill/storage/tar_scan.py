"""The headers of a tar: the name, size and position of each member, without reading its content.

A plain ustar header takes about 9 µs, one with attributes (long names, pax) about 30. A damaged header costs what lies
between it and the next valid one: both are described by a member of kind `DAMAGED`. A false size in a header never
allocates memory.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


BLOCK = 512
DAMAGED = b"?"
"""The kind of a part that belongs to no member."""
CUT = b"!"
"""The kind of what is left of a tar that ends before its end mark."""
MAX_OFFSET = 1 << 62
"""The largest offset in a tar. The sum of two still fits 64 bits."""
_WINDOW_BYTES = 64 << 10
_RECORD_BYTES = 20 * BLOCK
"""Most writers pad an archive with zeros to a multiple of this."""
_MAX_PADDING_BYTES = 1 << 20
_MAGIC, _MAGIC_PLACE = b"ustar", 257
_NAME_BYTES = 100
_PLAIN_KINDS = (b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7")
_FILE_KINDS = (b"0", b"\0", b"7")
_EMPTY_KINDS = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices, folders: they have no content, even if their header states a size."""
_OCTAL = frozenset(b"01234567")
_MAX_EXTENSION_BYTES = 16 << 20
"""The largest header with the name or attributes of the next one: it is read into memory."""
_MAX_EXTENSIONS = 100
_MAX_DIGITS = 40
_PAX_RECORD = re.compile(rb"(\d{1,9}) ([^=]+)=", re.DOTALL)
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
    """The type in its header; `S` for all sparse files, `DAMAGED` and `CUT` for what is no member: `name` says why."""

    def isdir(self) -> bool:
        """Whether it is a folder; named as in `tarfile`."""
        return self.kind == b"5"

    def isreg(self) -> bool:
        """Whether it is a regular file; named as in `tarfile`."""
        return self.kind in _FILE_KINDS

    def is_lost(self) -> bool:
        """Whether it is a part of the tar that could not be read."""
        return self.kind in (DAMAGED, CUT)


class TarScan:
    """A scan of the headers of a tar. After the last member, `fault` describes the first damage, if there is any."""

    def __init__(self, file: BinaryIO) -> None:
        self.fault: str | None = None
        self._file = file
        self._window = b""
        self._start = 0
        self._defaults: dict[bytes, bytes] = {}
        """Attributes of all following members."""

    @cached_property
    def num_bytes(self) -> int:
        """The size of the tar."""
        return self._file.seek(0, os.SEEK_END)

    def members(self) -> Iterator[TarMember]:
        """Yield the members in order, and what lies between them that is no padding."""
        offset = archive = end = 0  # where the next header is, where its archive begins, where the last member ends
        problem: str | None = None  # with what lies between `end` and `offset`
        lost_end = 0
        is_cut = True
        while (header := self._read_header(offset)) is not None:
            if not any(header):
                is_cut = False
                offset += BLOCK
                continue
            if problem is None and offset > end:
                if _is_padding(end - archive, offset - archive):
                    archive = end = offset
                else:
                    problem = f"{offset - end} zero bytes"
            try:
                member = self._read_member(header, offset, is_after_damage=problem is not None)
                if not self._holds(member.data, member.data + member.size):
                    is_cut = True
                    break
            except _DamagedHeaderError as error:
                problem = problem or f"damaged header: {error}"
                is_cut = False
                offset, lost_end = self._find_header(error.place)
                continue
            if problem is not None:
                yield self._lose(DAMAGED, problem, end, member.header)
                problem = None
            yield member
            offset = end = member.data + _pad(member.size)
            is_cut = True
        num_bytes = self.num_bytes
        if problem is None and not is_cut:
            if any(self._read_at(offset, BLOCK)):
                problem, lost_end = "no member after the end mark", num_bytes
            elif num_bytes - end > _MAX_PADDING_BYTES:
                problem, lost_end = f"{num_bytes - end} zero bytes", num_bytes
        if problem is not None:
            yield self._lose(DAMAGED, problem, end, max(end, lost_end))
        elif is_cut and num_bytes:
            is_short = offset != num_bytes
            problem = "the tar file is cut short" if is_short else "the tar file has no end mark"
            yield self._lose(CUT, problem, min(end, num_bytes), num_bytes)

    def content(self, member: TarMember) -> bytes | None:
        """Return the bytes of a member; None if the tar ends in the middle. Small members are in the window already."""
        place = member.data - self._start
        if 0 <= place <= len(self._window) - member.size:
            return self._window[place : place + member.size]
        if not self._holds(member.data, member.data + member.size):
            return None
        return read_content(self._file, member)

    def _holds(self, start: int, stop: int) -> bool:  # noqa: ARG002  (a stream must keep them)
        """Whether the tar has these bytes."""
        return stop <= self.num_bytes

    def _lose(self, kind: bytes, problem: str, start: int, stop: int) -> TarMember:
        """Describe a part that could not be read."""
        problem = f"{problem}; {stop - start} bytes from byte {start} on were not read"
        self.fault = self.fault or problem
        return TarMember(problem, stop - start, start, start, kind)

    def _read_header(self, offset: int) -> bytes | None:
        """Return the header at an offset; None if no complete one is left."""
        header = self._read_at(offset, BLOCK)
        return header if len(header) == BLOCK else None

    def _read_at(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset; fewer at the end."""
        place = offset - self._start
        if not 0 <= place <= len(self._window) - size:
            self._file.seek(offset)
            self._window, self._start, place = self._file.read(max(size, _WINDOW_BYTES)), offset, 0
        return self._window[place : place + size]

    def _find_header(self, offset: int) -> tuple[int, int]:
        """Find the next valid header from an offset on, at any place, or the end of the tar.

        Also return where what lies before it ends: at the end of the tar, its padding is left out.
        """
        last = offset
        while True:
            window = self._read_at(offset, _WINDOW_BYTES)
            place = window.find(_MAGIC, _MAGIC_PLACE) - _MAGIC_PLACE
            while 0 <= place <= len(window) - BLOCK:
                if _has_checksum(window[place : place + BLOCK]):
                    return offset + place, offset + place
                place = window.find(_MAGIC, place + _MAGIC_PLACE + 1) - _MAGIC_PLACE
            last = max(last, offset + len(window.rstrip(b"\0")))
            if len(window) < BLOCK:
                return self.num_bytes, min(last, self.num_bytes)
            offset += len(window) - BLOCK + 1

    def _read_member(self, header: bytes, offset: int, *, is_after_damage: bool) -> TarMember:
        """Read the headers of the member whose first one is at an offset.

        Raises:
            _DamagedHeaderError: One of them is damaged.
        """
        member = _parse_plain_header(header, offset)
        if member is not None:
            if is_after_damage and all(header[:_NAME_BYTES]):
                message = "a name may be incomplete"  # a header before it had all of it
                raise _DamagedHeaderError(message, member.data + _pad(member.size))
            return member
        attributes: dict[bytes, bytes] = {}
        problem = ""
        place = offset
        for _ in range(_MAX_EXTENSIONS):
            if not _has_checksum(header):
                raise _DamagedHeaderError("its checksum is wrong", place)
            kind, data = header[156:157], place + BLOCK
            if kind not in b"LKxXg":
                break
            size = _parse_number(header[124:136])
            if size is None or not 0 <= size <= _MAX_EXTENSION_BYTES:
                raise _DamagedHeaderError(f"a name or attributes of {size} bytes", data)
            try:
                if kind in b"LK":
                    attributes |= {b"path": self._read_at(data, size).partition(b"\0")[0]} if kind == b"L" else {}
                else:
                    (self._defaults if kind == b"g" else attributes).update(_parse_pax(self._read_at(data, size)))
            except ValueError as error:
                problem = str(error)
            place = data + _pad(size)
            next_header = self._read_header(place)
            if next_header is None:
                raise _DamagedHeaderError("nothing follows a name or attributes", place)
            header = next_header
        else:
            raise _DamagedHeaderError("too many names or attributes", place)
        attributes = {**self._defaults, **attributes}
        size = _parse_number(attributes[b"size"], 10) if b"size" in attributes else _parse_number(header[124:136])
        size = 0 if kind in _EMPTY_KINDS else size
        if size is None or not 0 <= size <= data + size <= MAX_OFFSET:
            raise _DamagedHeaderError(f"a member of {size} bytes", data)
        if problem:  # the name of this member, or its size
            raise _DamagedHeaderError(problem, data + _pad(size))
        name = attributes[b"path"].rstrip(b"/") if b"path" in attributes else _join_name(header)
        if kind == b"S":
            has_more = header[482]
            while has_more:  # more of the map of a sparse file
                header = self._read_at(data, BLOCK).ljust(BLOCK, b"\0")
                has_more, data = header[504], data + BLOCK
        elif any(key.startswith(b"GNU.sparse.") for key in attributes):
            kind = b"S"
        elif kind == b"5" or (kind == b"\0" and name.endswith(b"/")):
            kind, name, size = b"5", name.rstrip(b"/"), 0
        return TarMember(decode_name(name), size, data, offset, kind)


def read_content(file: BinaryIO, member: TarMember) -> bytes | None:
    """Read the bytes of a member that the tar holds; None if it has become shorter."""
    file.seek(member.data)
    data = file.read(member.size)
    return data if len(data) == member.size else None


class _DamagedHeaderError(Exception):
    """A header cannot be used. The next one can only be at `place` or after it."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


def _is_padding(start: int, stop: int) -> bool:
    """Whether zeros between two members are the end of an archive that another one follows: by their place in it."""
    size = stop - start
    return size == 2 * BLOCK or (2 * BLOCK < size <= _MAX_PADDING_BYTES and stop % _RECORD_BYTES == 0)


def _pad(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _has_checksum(header: bytes) -> bool:
    """Whether the checksum in a header is right. Some old writers sum signed bytes."""
    stated = _parse_number(header[148:156])
    total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if stated == total:
        return True
    return stated == total - 256 * sum(byte > 127 for byte in header[:148] + header[156:])


def _parse_number(field: bytes, base: int = 8) -> int | None:
    """Parse a number of a header: digits, or bytes after a mark; None if it is none."""
    if field[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = field.partition(b"\0")[0].strip()[:_MAX_DIGITS]
    try:
        return int(digits, base) if digits.isdigit() else None if digits else 0
    except ValueError:
        return None


def _parse_pax(data: bytes) -> dict[bytes, bytes]:
    r"""Parse attributes: lines of their length, key and value.

    >>> _parse_pax(b"15 path=a/b.txt\n")
    Traceback (most recent call last):
    ...
    ValueError: an attribute does not end where it says
    >>> _parse_pax(b"16 path=a/b.txt\n")
    {b'path': b'a/b.txt'}
    """
    attributes: dict[bytes, bytes] = {}
    place = 0
    while place < len(data) and data[place]:
        record = _PAX_RECORD.match(data, place)
        if record is None:
            raise ValueError("an attribute has no length")
        end = place + int(record[1])
        if end > len(data) or data[end - 1 : end] != b"\n" or end <= record.end():
            raise ValueError("an attribute does not end where it says")
        attributes[record[2]] = data[record.end() : end - 1]
        place = end
    return attributes


def _join_name(header: bytes) -> bytes:
    name = header[:_NAME_BYTES].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def _parse_plain_header(header: bytes, offset: int) -> TarMember | None:
    """Parse a header of plain ustar; None for anything else."""
    checksum, size = header[148:156], header[124:136]
    kind = header[156:157]
    if kind not in _PLAIN_KINDS or not _OCTAL.issuperset(size[:11]) or size[11] not in b"\0 ":
        return None
    if not _OCTAL.issuperset(checksum[:6]) or int(checksum[:6], 8) != sum(header) - sum(checksum) + 8 * ord(" "):
        return None
    path = _join_name(header)
    num_bytes = int(size[:11], 8) if kind in _FILE_KINDS else 0
    is_odd = (kind not in _FILE_KINDS and int(size[:11], 8)) or (kind == b"\0" and path.endswith(b"/"))
    if kind == b"5":
        path = path.rstrip(b"/")
    return None if is_odd else TarMember(decode_name(path), num_bytes, offset + BLOCK, offset, kind)


def decode_name(name: bytes) -> str:
    """Decode the name of a member. Bytes that are not UTF-8 become surrogates, as in `tarfile`."""
    return name.decode("utf-8", "surrogateescape")
