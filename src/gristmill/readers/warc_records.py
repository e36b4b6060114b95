r"""The records of a WARC file, one after another, with their places.

A record is a version line, headers, a blank line, `Content-Length` bytes, and two line ends:

    WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 12\r\n\r\nHTTP/1.1 …\r\n\r\n

Crawlers compress every record as a separate gzip member, so that it can be read by its offset. `MemberStream` reads
members from any offset on: a place where a member begins is one that unpacks to `WARC/`. A member that is damaged costs
only itself: reading continues at the next place.
"""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from gristmill.core.errors import CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MAGIC = b"\x1f\x8b\x08"
"""How a gzip member begins."""
_VERSION = re.compile(rb"WARC/\d{1,3}\.\d{1,3}\r?\n")
_MAX_VERSION_BYTES = 16
_NEXT_RECORD = re.compile(rb"\n(?=WARC/\d{1,3}\.\d{1,3}\r?\n)")
_RECORD_END = re.compile(rb"\r?\n\r?\n|[\r\n]*(?:WARC/\d|\Z)")
"""What follows the content. Some writers leave line ends out."""
_MAX_LENGTH_DIGITS = 19
_MAX_HEAD_BYTES = 1 << 16
_READ_BYTES = 1 << 18
_PEEK_BYTES = 4096


@dataclass(slots=True)
class WarcRecord:
    """One record of a WARC file, or what is left of it."""

    headers: dict[str, str]
    """By name in lower case."""
    content: bytes | None
    """None if it is too large, or damaged."""
    num_bytes: int = 0
    """The size of the content; of a record that cannot be used, that of everything up to the next one."""
    problem: tuple[str, str] | None = None
    """The reason and message why it cannot be used."""
    position: int = 0
    """The offset of its gzip member in the file; in other files that of the record in the unpacked content."""
    part: int = 0
    """Its number among the records of its member."""


class ByteReader:
    """The bytes of a stream, with a look ahead. The damage of the stream is raised after the last readable byte."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self._damage: CorruptStreamError | None = None
        self.position = 0

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them; fewer at the end."""
        self._fill(size)
        if not self._buffer:
            self.raise_damage()
        return bytes(self._buffer[:size])

    def peek_after(self, offset: int, size: int) -> bytes | None:
        """Return the bytes after the next `offset` ones; None if there are not that many."""
        self._fill(offset + size)
        return bytes(self._buffer[offset : offset + size]) if len(self._buffer) >= offset else None

    def raise_damage(self) -> None:
        """Raise the damage that has ended the stream, if there is any."""
        if self._damage is not None:
            raise self._damage

    def take(self, size: int) -> bytes:
        """Take the next bytes; fewer at the end."""
        data = self.peek(size)
        self._drop(len(data))
        return data

    def skip(self, size: int) -> int:
        """Take and forget bytes; returns how many there were."""
        num_skipped = 0
        while num_skipped < size and (data := self.take(min(size - num_skipped, _READ_BYTES))):
            num_skipped += len(data)
        return num_skipped

    def skip_to_record(self, max_bytes: int = sys.maxsize) -> int:
        """Skip everything before the next line that begins a record, at most `max_bytes`; returns how many."""
        num_skipped = 0
        while num_skipped < max_bytes and self._fill(_READ_BYTES):
            beginning = _NEXT_RECORD.search(self._buffer)
            # The last bytes may be the first ones of the line.
            held = 0 if len(self._buffer) < _READ_BYTES else _MAX_VERSION_BYTES
            size = min(beginning.end() if beginning else len(self._buffer) - held, max_bytes - num_skipped)
            self._drop(size)
            num_skipped += size
            if beginning:
                break
        return num_skipped

    def _fill(self, size: int) -> bool:
        """Read until the buffer has `size` bytes; tells whether it has any."""
        try:
            while len(self._buffer) < size and self._damage is None and (chunk := self._read(_READ_BYTES)):
                self._buffer += chunk
        except CorruptStreamError as error:
            self._damage = error
        return bool(self._buffer)

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self.position += size


def read_records(source: ByteReader, position: int | None, max_content: int) -> Iterator[WarcRecord]:
    """Read all records of unpacked bytes; `position` is that of their member, None: each has its own.

    A damaged record costs only itself: everything up to the next version line is counted as its bytes.
    """
    part = 0
    while True:
        while source.peek(1) in (b"\r", b"\n"):
            source.take(1)
        if not source.peek(1):
            return
        start = source.position
        record = _read_record(source, max_content, has_member=position is not None)
        record.position, record.part = (start, 0) if position is None else (position, part)
        if record.content is None:
            record.num_bytes = source.position - start
        yield record
        part += 1


def _read_record(source: ByteReader, max_content: int, *, has_member: bool) -> WarcRecord:
    def refuse(message: str, *, has_begun: bool = True, is_skipped: bool = False) -> WarcRecord:
        """Skip a damaged record."""
        if not is_skipped:
            source.skip_to_record()
        if source.peek(1) or not has_begun:  # raises the damage that has ended the stream
            return WarcRecord(headers, None, problem=("invalid_warc", message))
        return WarcRecord(headers, None, problem=("truncated_record", f"the file ends within a record: {message}"))

    headers: dict[str, str] = {}
    size = _PEEK_BYTES
    while True:
        head = source.peek(size)
        end = re.search(rb"\r?\n\r?\n", head)
        if end is not None or len(head) < size or size >= _MAX_HEAD_BYTES:
            break
        size *= 4
    if not _VERSION.match(head):
        return refuse(f"no record begins here: {head[:40]!r}", has_begun=False)
    if end is None:
        return refuse("the headers do not end")
    headers = parse_headers(head[: end.start()].partition(b"\n")[2])
    if not headers.get("warc-type"):
        return refuse("the headers have no WARC-Type")
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal() and len(length) < _MAX_LENGTH_DIGITS):
        return refuse(f"Content-Length is {length[:40]!r}, not a number")
    num_bytes = int(length)
    if num_bytes > max_content:
        # What is too large to be held may be a wrong length. Only a gzip member says where its record ends.
        size = end.end() + num_bytes
        num_skipped = source.skip(size) if has_member else source.skip_to_record(size)
        if num_skipped < size:
            return refuse(f"Content-Length is {length}, but {num_skipped - end.end()} bytes are there", is_skipped=True)
        message = f"{num_bytes} bytes, more than max_record_bytes ({max_content})"
        return WarcRecord(headers, None, problem=("too_large", message))
    following = source.peek_after(end.end() + num_bytes, _PEEK_BYTES)
    if following is None:
        return refuse(f"Content-Length is {length}, more than there is")
    if not _RECORD_END.match(following):
        return refuse(f"Content-Length is {length}, but the record does not end there")
    source.take(end.end())
    return WarcRecord(headers, source.take(num_bytes), num_bytes)


def parse_headers(head: bytes) -> dict[str, str]:
    r"""Return the headers by name in lower case; of several with one name the first.

    >>> parse_headers(b"WARC-Type: response\r\nContent-Length:  12\r\n folded\r\nno colon")
    {'warc-type': 'response', 'content-length': '12 folded'}
    """
    headers: dict[str, str] = {}
    name = ""
    for line in head.decode("utf-8", "replace").splitlines():
        if line[:1] in (" ", "\t") and name:
            headers[name] += f" {line.strip()}"
            continue
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if colon and name and name not in headers:
            headers[name] = value.strip()
        else:
            name = ""
    return headers


class MemberStream:
    """The gzip members of a file from an offset on, each with its offset."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        self._file = file
        self._file.seek(offset)
        self._offset = offset
        """The offset of the buffer in the file."""
        self._buffer = bytearray()
        self._has_skipped = False

    @property
    def offset(self) -> int:
        """The offset of what was not read yet."""
        return self._offset

    def members(self, end: int | None = None) -> Iterator[tuple[int, Callable[[int], bytes]]]:
        """Yield the offset of each member before `end`, and a function that reads its content.

        The content need not be read to its end. The function raises `CorruptStreamError` where the member is damaged.
        Where a member ends and no other begins, one is damaged from its first bytes on: it comes with the member before
        it, because only from there its offset is known.
        """
        expected = None if self._offset else 0
        while True:
            start = self._find_member()
            if expected is not None and self._has_skipped:
                yield expected, _raise_damaged_beginning
            if start is None or (end is not None and start >= end):
                return
            member = _Member(self)
            yield start, member.read
            member.finish()
            expected = None if member.is_damaged else self._offset

    def _find_member(self) -> int | None:
        """Drop the bytes before the next member; returns its offset, None at the end of the file."""
        self._has_skipped = False
        while True:
            index = self._buffer.find(MAGIC)
            if index < 0:
                self._skip(max(len(self._buffer) - len(MAGIC) + 1, 0))
                if not self.fill():
                    self._skip(len(self._buffer))
                    return None
                continue
            self._skip(index)
            while len(self._buffer) < _PEEK_BYTES and self.fill():
                pass
            try:
                beginning = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(bytes(self._buffer[:_PEEK_BYTES]), 5)
            except zlib.error:
                beginning = b""
            if beginning == b"WARC/":
                return self._offset
            self._skip(1)

    def fill(self) -> bool:
        """Read more of the file into the buffer; False at its end."""
        data = self._file.read(_READ_BYTES)
        self._buffer += data
        return bool(data)

    def take(self) -> bytes:
        """Take what is in the buffer, or more of the file; empty at its end."""
        if not self._buffer:
            self.fill()
        data = bytes(self._buffer)
        self._drop(len(data))
        return data

    def give_back(self, data: bytes) -> None:
        """Put bytes back that belong to the next member."""
        self._buffer[:0] = data
        self._offset -= len(data)

    def _skip(self, size: int) -> None:
        """Drop bytes that belong to no member; zeros are padding."""
        self._has_skipped = self._has_skipped or any(self._buffer[:size])
        self._drop(size)

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._offset += size


def _raise_damaged_beginning(_: int) -> bytes:
    raise CorruptStreamError("the beginning of a gzip member is damaged")


class _Member:
    """One gzip member that is being read."""

    def __init__(self, stream: MemberStream) -> None:
        self._stream = stream
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.is_damaged = False

    def read(self, size: int) -> bytes:
        """Unpack up to `size` more bytes; empty at the end of the member."""
        while not self._unpack.eof:
            data = self._unpack.unconsumed_tail or self._stream.take()
            try:
                piece = self._unpack.decompress(data, size)
            except zlib.error as error:
                # Only the first bytes are given up: the next member may begin anywhere after them.
                self._stream.give_back(data[1:])
                self.is_damaged = True
                raise CorruptStreamError(f"the gzip member is damaged: {error}") from error
            if piece:
                return piece
            if not data and not self._unpack.eof:
                self.is_damaged = True
                raise CorruptStreamError("the file ends within a gzip member", truncated=True)
        return b""

    def finish(self) -> None:
        """Skip what was not read, and give back what belongs to the next member."""
        try:
            while not self.is_damaged and self.read(_READ_BYTES):
                pass
        except CorruptStreamError:
            return
        if not self.is_damaged:
            self._stream.give_back(self._unpack.unused_data)
