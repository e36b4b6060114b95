"""Folders for files on their way to somewhere else, in the user's cache folder.

A folder is locked while it is in use, so what a killed process has left is recognized and removed by the next one.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.errors import FolderLockedError
from gristmill.storage.commit import make_folder
from gristmill.storage.lock import FolderLock

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def open_staging_folder(kind: str) -> Iterator[Path]:
    """Make an empty folder, which is removed at the end with everything in it."""
    parent = Path(choose_cache_folder(str(Path.home()), sys.platform, kind))
    for left in parent.iterdir() if parent.is_dir() else ():
        try:
            with FolderLock(left):
                shutil.rmtree(left)
        except (FolderLockedError, FileNotFoundError):  # in use, or removed by another process
            continue
    folder = parent / secrets.token_hex(8)
    make_folder(folder)
    try:
        with FolderLock(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
