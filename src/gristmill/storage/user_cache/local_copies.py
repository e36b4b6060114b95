"""Copies of remote files in the user's cache folder, for readers that map files into memory.

A copy is named by its content, so it is never stale, and two datasets share what they have in common. It is compared
with its checksum while it is fetched. The folder may be deleted at any time; above `_MAX_BYTES` the copies that were
used longest ago are removed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.errors import DamagedDatasetError
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from gristmill.storage.locations import Location, StorePath

_MAX_BYTES = 64 << 30
_COPY_BYTES = 4 << 20
_folder: Path | None = None


def choose_copies_folder(folder: Path | None) -> None:
    """Choose the folder of copies for this process; None: the user's cache folder."""
    global _folder  # noqa: PLW0603  (one setting of the process)
    _folder = folder


def find_cache_group(name: str) -> Path:
    """Return a folder among the copies for files that belong together. Any of them may be removed at any time."""
    return (_folder or Path(choose_cache_folder(str(Path.home()), sys.platform, "files"))) / name


def copy_locally(path: Location, num_bytes: int, checksum: str, group: str = "") -> Path:
    """Return a local file with this content: the file itself, or a copy. Copies of one `group` are in one folder.

    Raises:
        DamagedDatasetError: What the store has is something else.
    """
    if isinstance(path, Path):
        return path
    copy = find_cache_group(group or f"{checksum}-{num_bytes}") / path.name
    try:
        if copy.stat().st_size == num_bytes:
            with suppress(OSError):
                os.utime(copy)
            return copy
    except FileNotFoundError:
        pass
    _remove_oldest(copy.parents[1], num_bytes)
    _fetch(path, copy, num_bytes, checksum)
    return copy


def _fetch(path: StorePath, copy: Path, num_bytes: int, checksum: str) -> None:
    with path.open() as stream, PendingFile(copy, "copy") as file:
        while piece := stream.read(_COPY_BYTES):
            file.write(piece)
        if (file.num_bytes, file.checksum) != (num_bytes, checksum):
            raise DamagedDatasetError(
                f"{path} is not what the manifest says: it has {file.num_bytes} bytes, xxh3 {file.checksum}",
                help="run gristmill verify on its dataset",
            )
        file.commit(sync=False)


def _remove_oldest(folder: Path, num_bytes: int) -> None:
    copies = [(file.stat(), file) for file in folder.glob("*/*")] if folder.is_dir() else []
    total = sum(status.st_size for status, _ in copies) + num_bytes
    for status, file in sorted(copies, key=lambda entry: entry[0].st_mtime):
        if total <= _MAX_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= status.st_size
