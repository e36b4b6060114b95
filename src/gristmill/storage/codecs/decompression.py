"""Decompression of gzip, bz2, xz and lz4: one decompressor for each member, in pieces of limited size."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import CorruptStreamError
from gristmill.storage.codecs.byte_source import ByteSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO, Literal

_INPUT_BYTES = 2**16
_PIECE_BYTES = 2**16


class _Decompressor(Protocol):
    """The interface of the standard library's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _GzipDecompressor:
    """zlib's decompressor with the interface of the others: it keeps unread input in another attribute."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpack.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._unpack.decompress(self._unpack.unconsumed_tail + data, max_length)
        # After a full piece there may be more output, even if all input is consumed.
        self.needs_input = len(piece) < max_length
        return piece


def decompress_members(stream: BinaryIO, codec: Literal["gzip", "bz2", "xz", "lz4"]) -> Iterator[bytes]:
    """Yield the content of all members in pieces of at most 64 KiB."""
    source = ByteSource(stream)
    open_member, padding, errors = _find_decompressor(codec)
    data = source.take(_INPUT_BYTES)
    while data:
        member = open_member()
        while not member.eof:
            try:
                piece = member.decompress(data, _PIECE_BYTES)
            except errors as error:
                raise CorruptStreamError(f"the {codec} stream is damaged: {error}") from error
            if piece:
                yield piece
            data = b""
            if member.needs_input and not member.eof:
                data = source.take(_INPUT_BYTES)
                if not data:
                    raise CorruptStreamError(f"the {codec} stream ends in the middle of a member", truncated=True)
        data = _skip_padding(source, member.unused_data or b"", padding)


def _skip_padding(source: ByteSource, data: bytes, padding: bytes) -> bytes:
    """Return what follows a member and its padding (tapes and block devices pad with zeros); empty at the end."""
    data = data.lstrip(padding)
    while not data and (data := source.take(_INPUT_BYTES)):
        data = data.lstrip(padding)
    return data


def _find_decompressor(
    codec: Literal["gzip", "bz2", "xz", "lz4"],
) -> tuple[Callable[[], _Decompressor], bytes, type[Exception]]:
    match codec:
        case "gzip":
            return _GzipDecompressor, b"\0", zlib.error
        case "bz2":
            return bz2.BZ2Decompressor, b"", OSError
        case "xz":
            return (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)), b"\0", lzma.LZMAError
        case "lz4":
            import lz4.frame  # noqa: PLC0415  (rarely used)

            return lz4.frame.LZ4FrameDecompressor, b"", RuntimeError
