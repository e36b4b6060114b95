"""Opens input files, local or remote, and reads their size and version."""

from __future__ import annotations

import io
import os
from functools import partial
from typing import BinaryIO, cast

from gristmill.storage import local_files, remote_files
from gristmill.storage.remote_calls import RemoteStream, ask_store

REMOTE_BLOCK_BYTES = 8 * 2**20
"""The size of a read from a remote store: large enough to hide its latency, small enough for many workers."""


def open_input(path: str, start: int = 0) -> BinaryIO:
    """Open a file for reading at byte `start`. Local files are unbuffered: read large pieces, or use `readinto`."""
    if remote_files.find_protocol(path) is None:
        stream = cast("BinaryIO", io.FileIO(remote_files.local_path(path)))
    else:
        fs, inner = remote_files.open_file_system(path)
        open_file = partial(fs.open, inner, "rb", block_size=REMOTE_BLOCK_BYTES, cache_type="readahead")
        stream = cast("BinaryIO", RemoteStream(path, open_file))
    if start:
        stream.seek(start)
    return stream


def read_version(path: str) -> tuple[int, str]:
    """Return size and version of a file as it is now: those of `find_files`, unless it has changed since."""
    if remote_files.find_protocol(path) is None:
        stat = os.stat(remote_files.local_path(path))  # noqa: PTH116  (a hundred thousand small files)
        return stat.st_size, local_files.version_of(stat)
    fs, inner = remote_files.open_file_system(path)
    fs.invalidate_cache(inner)
    info = ask_store(path, lambda: fs.info(inner))
    return int(info["size"]), remote_files.version_of(info)
