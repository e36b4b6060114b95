"""Checksums of files: xxh3, 64 bits, as 16 hexadecimal digits. As fast as the file can be read."""

from __future__ import annotations

import os

import xxhash

from gristmill.storage.files import open_input

_PIECE_BYTES = 2**20


def compute_file_checksum(path: str | os.PathLike[str]) -> str:
    """Compute the checksum of a file's content, in constant memory."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(_PIECE_BYTES)
    view = memoryview(buffer)
    with open_input(os.fspath(path)) as stream:
        while num_bytes := stream.readinto(view):  # type: ignore[attr-defined]
            digest.update(view[:num_bytes])
    return digest.hexdigest()
