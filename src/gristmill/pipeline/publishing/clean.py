"""Removing what a dead run left: its work folder and temporary files. A finished dataset stays as it is."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.pipeline import work_folder as output
from gristmill.pipeline.publishing import journal as moves
from gristmill.storage.lock import LOCK_NAME, FolderLock

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What was removed."""

    files: list[str]
    """Below the folder."""
    num_bytes: int
    is_dataset: bool
    """The folder holds a finished dataset, which was left alone."""


def clean(folder: Path) -> CleanResult:
    """Refuses a folder that is not ours, and one in which a run is at work."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", help="name the output folder of a run")
    output.check_output_folder(folder)
    with FolderLock(folder):
        before = _measure_files(folder)
        moves.recover_interrupted_publish(folder, secrets.token_hex(6))
        is_dataset = moves.find_manifest(folder) is not None
        if is_dataset:
            moves.prune_work_folder(folder)
        else:
            output.remove_work_folder(folder)
        after = _measure_files(folder)
    removed = sorted(before.keys() - after.keys())
    return CleanResult(removed, sum(before[path] for path in removed), is_dataset)


def _measure_files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_size
        for path in folder.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.name != LOCK_NAME
    }
