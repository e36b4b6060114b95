"""Removing what a killed run left: its work folder and temporary files. A finished dataset stays as it is."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.pipeline import work_folder
from gristmill.pipeline.publishing import journal
from gristmill.storage.lock import LOCK_NAME, FolderLock

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The files that `clean` has removed."""

    files: list[str]
    """Paths relative to the folder."""
    num_bytes: int
    is_dataset: bool
    """Whether the folder holds a finished dataset, which was not touched."""


def clean(folder: Path) -> CleanResult:
    """Clean an output folder. Folders that no run made, and folders that a run is using, are refused."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", help="name the output folder of a run")
    work_folder.check_output_folder(folder)
    with FolderLock(folder):
        before = _measure_files(folder)
        journal.recover_interrupted_publish(folder, secrets.token_hex(6))
        is_dataset = journal.find_manifest(folder) is not None
        if is_dataset:
            journal.prune_work_folder(folder)
        else:
            work_folder.remove_work_folder(folder)
        after = _measure_files(folder)
    removed = sorted(before.keys() - after.keys())
    return CleanResult(removed, sum(before[path] for path in removed), is_dataset)


def _measure_files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_size
        for path in folder.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.name != LOCK_NAME
    }
