"""A lock on the output folder: one run at a time."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gristmill.pipeline import work_folder
from gristmill.pipeline.publishing import journal
from gristmill.storage.commit import make_folder
from gristmill.storage.lock import FolderLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def lock_output(folder: Path) -> Iterator[str]:
    """Make and lock a folder, recover from an interrupted publish, and give the id of the new run."""
    work_folder.check_output_folder(folder)
    make_folder(folder)
    with FolderLock(folder):
        run_id = secrets.token_hex(6)
        journal.recover_interrupted_publish(folder, run_id)
        yield run_id
