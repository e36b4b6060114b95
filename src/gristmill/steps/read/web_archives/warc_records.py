r"""The records of a WARC file, one after another, with their places.

A record is a version line, headers, a blank line, `Content-Length` bytes, and two line ends:

    WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 12\r\n\r\nHTTP/1.1 …\r\n\r\n

Crawlers compress every record as a gzip member of its own, so that it can be read by its offset. `MemberStream` reads
members from any offset on: a place where a member begins is one that unpacks to `WARC/`. A member that is damaged costs
only itself: reading continues at the next place.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from gristmill.core.errors import CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAGIC = b"\x1f\x8b\x08"
"""How a gzip member begins."""
_VERSION = re.compile(rb"WARC/\d+\.\d+\r?\n")
_MAX_HEAD_BYTES = 1 << 16
_READ_BYTES = 1 << 18
_PEEK_BYTES = 4096


@dataclass(slots=True)
class WarcRecord:
    """One record of a WARC file, or what is left of it."""

    position: int
    """The offset of its gzip member in the file; in other files that of the record in the unpacked content."""
    part: int
    """Its number among the records of its member."""
    headers: dict[str, str]
    """By name in lower case."""
    content: bytes | None
    """None if it is too large, or damaged."""
    num_bytes: int
    problem: tuple[str, str] | None = None
    """The reason and message why it cannot be used."""


class ByteReader:
    """The bytes of a stream, with a look ahead. The damage of the stream is raised behind the last readable byte."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = b""
        self._damage: CorruptStreamError | None = None
        self.position = 0

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them; fewer at the end."""
        try:
            while len(self._buffer) < size and self._damage is None and (chunk := self._read(_READ_BYTES)):
                self._buffer += chunk
        except CorruptStreamError as error:
            self._damage = error
        if not self._buffer:
            self.raise_damage()
        return self._buffer[:size]

    def raise_damage(self) -> None:
        """Raise the damage that has ended the stream, if there is any."""
        if self._damage is not None:
            raise self._damage

    def take(self, size: int) -> bytes:
        """Take the next bytes; fewer at the end."""
        data = self.peek(size)
        self._buffer = self._buffer[len(data) :]
        self.position += len(data)
        return data

    def skip(self, size: int) -> int:
        """Take and forget bytes; returns how many there were."""
        num_skipped = 0
        while num_skipped < size and (data := self.take(min(size - num_skipped, _READ_BYTES))):
            num_skipped += len(data)
        return num_skipped


def read_records(source: ByteReader, position: int | None, max_content: int) -> Iterator[WarcRecord]:
    """Read all records of unpacked bytes; `position` is that of their member, None: each has its own.

    After bytes that are no record nothing more is read: where the next one begins cannot be known.
    """
    part = 0
    while True:
        while source.peek(1) in (b"\r", b"\n"):
            source.take(1)
        if not source.peek(1):
            return
        start = source.position if position is None else position
        number = 0 if position is None else part
        record = _read_record(source, start, number, max_content)
        yield record
        if record.problem is not None and record.problem[0] != "too_large":
            return
        part += 1


def _read_record(source: ByteReader, position: int, part: int, max_content: int) -> WarcRecord:
    def refuse(reason: str, message: str, headers: dict[str, str], num_bytes: int = 0) -> WarcRecord:
        return WarcRecord(position, part, headers, None, num_bytes, (reason, message))

    size = _PEEK_BYTES
    while True:
        head = source.peek(size)
        end = re.search(rb"\r?\n\r?\n", head)
        if end is not None or len(head) < size or size >= _MAX_HEAD_BYTES:
            break
        size *= 4
    if not _VERSION.match(head):
        return refuse("invalid_warc", f"no record begins here: {head[:40]!r}", {})
    if end is None:
        source.raise_damage()
        return refuse("truncated_record", "the file ends within the headers of a record", {})
    source.take(end.end())
    headers = parse_headers(head[: end.start()].partition(b"\n")[2])
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()):
        return refuse("invalid_warc", f"Content-Length is {length!r}, not a number", headers)
    num_bytes = int(length)
    if num_bytes > max_content:
        if source.skip(num_bytes) < num_bytes:
            source.raise_damage()
            return refuse("truncated_record", "the file ends within a record", headers, num_bytes)
        message = f"{num_bytes} bytes, more than max_record_bytes ({max_content})"
        return refuse("too_large", message, headers, num_bytes)
    content = source.take(num_bytes)
    if len(content) < num_bytes:
        source.raise_damage()
        message = f"{len(content)} of {num_bytes} bytes are there"
        return refuse("truncated_record", f"the file ends within a record: {message}", headers, num_bytes)
    return WarcRecord(position, part, headers, content, num_bytes)


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
                # Only the first bytes are given up: the next member may begin anywhere behind them.
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
