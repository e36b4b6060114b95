"""Compressed streams: gzip, zstd, bz2, xz, lz4. Reading is bounded, complete and exact; writing is deterministic.

Bounded: at any ratio, one call expands to a limited size, so a decompression bomb costs time but no memory.
Complete: consecutive members and frames are read as one stream. Exact: a truncated or damaged stream first yields all
that is readable, then raises. The chunks depend only on the stream's bytes, not on how they arrive.

Damage other than truncation can lose up to 64 KiB before it, and can be noticed late: gzip checks its content only at
the end of a member, so wrong bytes may come before the error.

Zstd is decompressed block by block: the binding's own readers either accept a truncated frame as complete, or expand an
input without a limit. Each block states its length, expands to at most 128 KiB, and the last one is marked. A block
costs about 2 µs beyond its decoding.
"""

from __future__ import annotations

import bz2
import lzma
import threading
import zlib
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import zstandard

from gristmill.core.errors import CorruptStreamError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from typing_extensions import Buffer

__all__ = ["Codec", "CorruptStreamError", "compress_frame", "decompress", "find_codec", "strip_codec"]

Codec = Literal["gzip", "zstd", "bz2", "xz", "lz4"]
CHUNK_BYTES = 2**20

_SUFFIXES: dict[str, Codec] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".xz": "xz",
    ".lz4": "lz4",
}
_LEVELS: dict[Codec, tuple[int, int, int]] = {  # least, default, most
    "gzip": (0, 6, 9),
    "zstd": (1, 3, 22),
    "bz2": (1, 9, 9),
    "xz": (0, 6, 9),
    "lz4": (0, 0, 16),
}
_INPUT_BYTES = _PIECE_BYTES = 2**16
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW_BYTES = 2**31  # the window of `zstd --long=31`, used by some large public corpora
_RLE, _RESERVED = 1, 3
_MAX_BLOCK_BYTES = 2**17
_compressors = threading.local()
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, time 0, system unknown: the same everywhere


def find_codec(path: str) -> Codec | None:
    """Return the codec of a name's suffix.

    >>> find_codec("part-0.jsonl.ZST"), find_codec("part-0.jsonl")
    ('zstd', None)
    """
    return _SUFFIXES.get(path[path.rfind(".") :].lower()) if "." in path else None


def strip_codec(path: str) -> str:
    """Return a name without its codec's suffix.

    >>> strip_codec("part-0.jsonl.gz"), strip_codec("part-0.jsonl")
    ('part-0.jsonl', 'part-0.jsonl')
    """
    return path if find_codec(path) is None else path[: path.rfind(".")]


def decompress(stream: BinaryIO, codec: Codec) -> Iterator[bytes]:
    """Yield the content of a compressed stream in chunks of 1 MiB to 1.125 MiB; the last is shorter.

    Raises:
        CorruptStreamError: After the last readable chunk. `context["num_bytes"]` is the size of all chunks before it,
            `context["num_unread"]` that of the rest of the stream, from the piece with the damage on.
    """
    source = ByteSource(stream)
    pieces = decompress_zstd(source) if codec == "zstd" else decompress_members(source, codec)
    num_bytes, gathered, num_gathered, num_read = 0, list[bytes](), 0, 0
    damage: CorruptStreamError | None = None
    try:
        for piece in pieces:
            gathered.append(piece)
            num_read = source.num_bytes
            num_gathered += len(piece)
            if num_gathered >= CHUNK_BYTES:
                num_bytes += num_gathered
                yield b"".join(gathered)
                gathered, num_gathered = [], 0
    except CorruptStreamError as error:
        damage = error
    if gathered:
        num_bytes += num_gathered
        yield b"".join(gathered)
    if damage is not None:
        damage.context["num_bytes"] = num_bytes
        damage.context["num_unread"] = source.count_rest(num_read)
        raise damage


def compress_frame(data: Buffer, codec: Codec, level: int | None = None) -> bytes:
    """Compress data to one complete member or frame. Equal data give equal bytes; joined frames are one stream."""
    if codec not in get_args(Codec):
        raise UsageError(f"compression must be one of {', '.join(get_args(Codec))}, not {codec!r}")
    least, default, most = _LEVELS[codec]
    used_level = default if level is None else level
    if not least <= used_level <= most:
        raise UsageError(f"the level of {codec} must be from {least} to {most}, not {level}")
    match codec:
        case "gzip":
            packer = zlib.compressobj(used_level, zlib.DEFLATED, -zlib.MAX_WBITS)
            packed = packer.compress(data) + packer.flush()
            num_bytes = memoryview(data).nbytes % 2**32
            return _GZIP_HEADER + packed + zlib.crc32(data).to_bytes(4, "little") + num_bytes.to_bytes(4, "little")
        case "zstd":
            return _reuse_zstd_compressor(used_level).compress(memoryview(data))
        case "bz2":
            return bz2.compress(data, used_level)
        case "xz":
            return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC64, used_level)
        case "lz4":
            import lz4.frame  # noqa: PLC0415  (rarely used)

            return bytes(lz4.frame.compress(data, used_level, content_checksum=True))


def _reuse_zstd_compressor(level: int) -> zstandard.ZstdCompressor:
    """Return this thread's compressor. A new one costs megabytes of fresh pages: a sixth of a frame's time."""
    name = f"level_{level}"
    if not hasattr(_compressors, name):
        setattr(_compressors, name, zstandard.ZstdCompressor(level=level, write_checksum=True))
    compressor: zstandard.ZstdCompressor = getattr(_compressors, name)
    return compressor


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


def decompress_members(source: ByteSource, codec: Literal["gzip", "bz2", "xz", "lz4"]) -> Iterator[bytes]:
    """Yield the content of all members in pieces of at most 64 KiB."""
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
        data = (member.unused_data or b"").lstrip(padding)  # tapes and block devices pad members with zeros
        while not data and (data := source.take(_INPUT_BYTES)):
            data = data.lstrip(padding)


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


def decompress_zstd(source: ByteSource) -> Iterator[bytes]:
    """Yield the content of all frames in pieces of at most 128 KiB."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    while magic := source.take(4):
        if magic == _ZSTD_MAGIC:
            yield from _decompress_frame(source, decompressor)
        elif len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50:
            missing = int.from_bytes(_take(source, 4), "little")
            while missing:
                missing -= len(_take(source, min(missing, 2**20)))
        elif _ZSTD_MAGIC.startswith(magic):
            raise _make_truncated_error()
        else:
            raise CorruptStreamError("a frame of the stream does not begin like a zstd frame")


def _decompress_frame(source: ByteSource, decompressor: zstandard.ZstdDecompressor) -> Iterator[bytes]:
    unpack = decompressor.decompressobj(read_across_frames=False)
    descriptor = _take(source, 1)
    has_checksum = bool(descriptor[0] & 0b100)
    try:
        unpack.decompress(_ZSTD_MAGIC + descriptor + _take(source, _count_header_bytes(descriptor[0])))
        is_last = False
        while not is_last:
            header = _take(source, 3)
            value = int.from_bytes(header, "little")
            is_last, kind, num_bytes = bool(value & 1), (value >> 1) & 3, value >> 3
            if kind == _RESERVED or num_bytes > _MAX_BLOCK_BYTES:
                raise CorruptStreamError("a zstd block has an impossible header")
            if piece := unpack.decompress(header + _take(source, 1 if kind == _RLE else num_bytes)):
                yield piece
        if has_checksum:
            unpack.decompress(_take(source, 4))
    except zstandard.ZstdError as error:
        raise CorruptStreamError(f"a zstd frame is damaged: {error}") from error


def _count_header_bytes(descriptor: int) -> int:
    """Return the number of bytes of a frame's header after its descriptor (RFC 8878, 3.1.1.1)."""
    is_single_segment = bool(descriptor & 0b10_0000)
    num_bytes = (0, 1, 2, 4)[descriptor & 0b11]  # dictionary id
    num_bytes += (int(is_single_segment), 2, 4, 8)[descriptor >> 6]  # content size
    return num_bytes + (0 if is_single_segment else 1)  # window


def _take(source: ByteSource, num_bytes: int) -> bytes:
    data = source.take(num_bytes)
    if len(data) < num_bytes:
        raise _make_truncated_error()
    return data


def _make_truncated_error() -> CorruptStreamError:
    return CorruptStreamError("the zstd stream ends in the middle of a frame", truncated=True)


class ByteSource:
    """A buffered stream that returns exact numbers of bytes; its source may return fewer (a pipe, a remote store)."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._fetched = b""
        self._position = 0
        self._num_taken = 0
        self.num_bytes = 0
        """How many bytes were taken so far."""

    def take(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes`; fewer only at the end of the stream."""
        stop = self._position + num_bytes
        if stop > len(self._fetched):
            self._fetch(num_bytes)
            stop = num_bytes
        data = self._fetched[self._position : stop]
        self._position += len(data)
        self._num_taken = len(data)
        self.num_bytes += len(data)
        return data

    def count_rest(self, start: int) -> int:
        """Count the bytes from `start`, or from the last ones that were taken, to the end of the stream; reads them."""
        num_bytes = len(self._fetched) - self._position + max(self._num_taken, self.num_bytes - start)
        while piece := self._stream.read(CHUNK_BYTES):
            num_bytes += len(piece)
        return num_bytes

    def _fetch(self, num_bytes: int) -> None:
        pieces = [self._fetched[self._position :]]
        missing = max(num_bytes, CHUNK_BYTES) - len(pieces[0])
        while missing > 0 and (piece := self._stream.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
        self._fetched = b"".join(pieces)
        self._position = 0
