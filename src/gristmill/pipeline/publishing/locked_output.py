"""An output folder for one run alone."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gristmill.pipeline import work_folder as output
from gristmill.pipeline.publishing import journal as moves
from gristmill.storage.commit import make_folder
from gristmill.storage.lock import FolderLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def lock_output(folder: Path) -> Iterator[str]:
    """Make and lock the folder, and settle what a killed run left half-way; gives the new run's id."""
    output.check_output_folder(folder)
    make_folder(folder)
    with FolderLock(folder):
        run_id = secrets.token_hex(6)
        moves.recover_interrupted_publish(folder, run_id)
        yield run_id
