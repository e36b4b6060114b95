"""Compressed streams: gzip, zstd, bz2, xz, lz4. Reading is bounded, complete and exact; writing is deterministic.

Bounded: whatever the ratio, one call expands to a limited size, so a decompression bomb costs time but no memory.
Complete: consecutive members and frames are read as one stream. Exact: a truncated or damaged stream first yields all
that is readable, then raises. The chunks depend only on the stream's bytes, not on how they arrive.

Damage other than truncation can lose up to 64 KiB before it, and can be noticed late: gzip checks its content only at
the end of a member, so wrong bytes may come before the error.
"""

from __future__ import annotations

import bz2
import lzma
import threading
import zlib
from typing import TYPE_CHECKING, Literal, get_args

import zstandard

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.storage.codecs.decompression import decompress_members
from gristmill.storage.codecs.zstd_frames import decompress_zstd

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        CorruptStreamError: After the last readable chunk. `context["num_bytes"]` is the size of all chunks before it.
    """
    pieces = decompress_zstd(stream) if codec == "zstd" else decompress_members(stream, codec)
    num_bytes, gathered, num_gathered = 0, list[bytes](), 0
    damage: CorruptStreamError | None = None
    try:
        for piece in pieces:
            gathered.append(piece)
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
            return _compress_gzip_member(data, used_level)
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


def _compress_gzip_member(data: Buffer, level: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(data) + packer.flush()
    num_bytes = memoryview(data).nbytes
    return _GZIP_HEADER + packed + zlib.crc32(data).to_bytes(4, "little") + (num_bytes % 2**32).to_bytes(4, "little")
