"""The headers of a plain tar: the name, size and position of each member, without reading its content.

A plain ustar header takes about 9 µs. `tarfile` reads the rest (long names, pax), about 30 µs each. Damage ends a scan
and is described. A false size in a header never allocates memory.
"""

from __future__ import annotations

import os
import re
import tarfile
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

BLOCK = 512
MAX_OFFSET = 1 << 62
"""The largest offset in a tar. The sum of two still fits 64 bits."""
_WINDOW_BYTES = 64 << 10
_PLAIN_KINDS = (b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7")
_FILE_KINDS = (b"0", b"\0", b"7")
_EXTENSION_KINDS = (b"L", b"K", b"x", b"g", b"X")
_OCTAL = frozenset(b"01234567")
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
        return read_content(self._file, member, self.num_bytes)

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


def read_content(file: BinaryIO, member: TarMember, tar_bytes: int) -> bytes | None:
    """Read the bytes of a member of a tar of this size; None if the tar ends in the middle."""
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
    if not 0 <= member.size <= member.offset_data + member.size <= MAX_OFFSET:
        raise DamagedHeaderError(f"damaged header: a member of {member.size} bytes")


def make_checked_header(note_end: Callable[[], None]) -> type[tarfile.TarInfo]:
    """Create a header class for `tarfile` that distinguishes damage from an end mark: by itself it stops at both."""

    class Header(tarfile.TarInfo):
        _is_at_end = False

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
            cls._is_at_end = is_end = not any(buf)  # a block of zeros, or nothing more
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

        @classmethod
        def fromtarfile(cls, archive: tarfile.TarFile) -> Header:
            try:
                return super().fromtarfile(archive)
            except tarfile.HeaderError as error:
                if cls._is_at_end:
                    raise
                # Of attributes: newer versions of Python take it for the end.
                raise DamagedHeaderError(f"damaged header: {error}") from error

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
    return None if is_odd else TarMember(decode_name(path), num_bytes, offset + BLOCK, offset, kind)


def decode_name(name: bytes) -> str:
    """Decode the name of a member. Bytes that are not UTF-8 become surrogates, as in `tarfile`."""
    return name.decode("utf-8", "surrogateescape")
