"""The output folder and the work folder in it: the names of what a run keeps there, and who owns it.

Nothing that Gristmill did not make is deleted. All paths below `.gristmill` are spelled here.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.shards.manifest import MANIFEST
from gristmill.storage.commit import remove_temporaries
from gristmill.storage.locations import StorePath, list_files_below, list_names
from gristmill.storage.lock import LOCK_NAME
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gristmill.storage.locations import Location

WORK_FOLDER = ".gristmill"
"""The work folder, in the output folder. Everything in it was made by a run."""
RECEIPTS = f"{WORK_FOLDER}/receipts.jsonl"
UNIT_RECEIPTS = f"{WORK_FOLDER}/units.jsonl"
"""The receipts of a finished dataset, which an update can reuse."""
PLUGINS = f"{WORK_FOLDER}/plugins.json"
"""The plugins that an unfinished run uses; a finished dataset has them in its manifest."""
JOURNAL = f"{WORK_FOLDER}/moves.json"
LEASE = f"{WORK_FOLDER}/lease"
"""Who may write, where several machines can reach the output."""
STATUS = f"{WORK_FOLDER}/status.json"
"""What a run is doing, for `gristmill status`. Replaced every few seconds."""
_IN_PROCESS_MARKER = f"{WORK_FOLDER}/in-process"
"""There while a run works in its own process. One that is found without a run was left by a run that died."""
_TASK_FILES = f"{WORK_FOLDER}/work"
_SPOOLED_RECORDS = f"{WORK_FOLDER}/records"
_WRITTEN_IN_PLACE = (_TASK_FILES, _SPOOLED_RECORDS, RECEIPTS, UNIT_RECEIPTS)
"""What a run writes into or appends to. A link there could lead to files of others."""


def work_path(name: str) -> str:
    """Return where a run puts a file until it is published, relative to the output folder."""
    return f"{_TASK_FILES}/{name}"


def spool_path(source: str, name: str) -> str:
    """Return where a run keeps records that come from Python, relative to the output folder."""
    return f"{_SPOOLED_RECORDS}/{source}/{name}"


def is_lease_path(path: str) -> bool:
    """Tell whether a path below the output folder belongs to the lease, which outlives the work folder."""
    return path.startswith(f"{LEASE}/")


def is_work_path(path: str) -> bool:
    """Tell whether a path below the output folder is in the work folder."""
    return path.startswith(f"{WORK_FOLDER}/")


def check_output_folder(output: Location) -> None:
    """Raise `UsageError` for a folder with content that no run made, or with links that would lead a run out of it."""
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError(f"the output {output} is a file", help="choose another output folder")
    names = {*list_names(output)} - {LOCK_NAME}
    if names and MANIFEST not in names and WORK_FOLDER not in names:
        examples = ", ".join(sorted(names)[:3])
        raise UsageError(
            f"the output folder {output} is not empty and was not made by gristmill (it holds {examples})",
            help="choose another output folder, or empty this one yourself",
        )
    _find_work_folder(output)
    for path in _WRITTEN_IN_PLACE:
        path_below(output, path)


def check_writable(output: Location) -> None:
    """Raise `UsageError` for a folder that cannot be made or written."""
    if isinstance(output, StorePath):  # the first request to write will tell
        return
    folder = output
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"{output} cannot be created: {folder} is a file", help="choose another output")
    if is_read_only(folder) and not (output / MANIFEST).exists():  # a finished dataset may be up to date as it is
        raise UsageError(f"{output} cannot be written: no permission in {folder}", help="choose another output")


def is_read_only(folder: Location) -> bool:
    """Tell whether this process may not write there: by its permissions, or because the file system is read-only."""
    return isinstance(folder, Path) and not os.access(folder, os.W_OK)


def has_in_process_marker(output: Location) -> bool:
    """Tell whether a run works in its own process, or died there."""
    return isinstance(output, Path) and os.path.lexists(output / _IN_PROCESS_MARKER)


@contextmanager
def mark_in_process(output: Location) -> Iterator[None]:
    """Keep the marker as long as a run works in its own process. Only the end of the process itself leaves it behind.

    It is not synced: a crash of the machine is no record's fault.
    """
    if isinstance(output, StorePath):
        yield
        return
    marker = output / _IN_PROCESS_MARKER
    marker.parent.mkdir(exist_ok=True)
    os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield
    finally:
        remove_in_process_marker(output)


def remove_in_process_marker(output: Location) -> None:
    """Remove the marker: the dataset is finished, or the run has ended without dying."""
    if isinstance(output, Path):
        (output / _IN_PROCESS_MARKER).unlink(missing_ok=True)


def remove_files(output: Location, paths: Iterable[str]) -> None:
    """Remove files of a dataset and the folders that this leaves empty."""
    if isinstance(output, StorePath):
        store, key = output.open_store()
        store.delete([f"{key}/{path}" for path in paths])
        return
    folders: set[Path] = set()
    for file in [path_below(output, path) for path in paths]:  # all are checked before the first one is removed
        file.unlink(missing_ok=True)
        folders.update(parent for parent in file.parents if parent.is_relative_to(output) and parent != output)
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def remove_work_folder(output: Location, paths_to_keep: Collection[str] = ()) -> None:
    """Remove the work folder except for some files, and all temporary files of runs that were killed."""
    if isinstance(output, StorePath):
        work_files = (f"{WORK_FOLDER}/{path}" for path, _ in list_files_below(output / WORK_FOLDER))
        remove_files(output, [path for path in work_files if path not in paths_to_keep and not is_lease_path(path)])
        return
    remove_temporaries(output, None)
    work = _find_work_folder(output)
    assert isinstance(work, Path)
    for path in sorted(work.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif (name := path.relative_to(output).as_posix()) not in paths_to_keep and not is_lease_path(name):
            path.unlink()
    if work.is_dir() and not any(work.iterdir()):
        work.rmdir()


def _find_work_folder(output: Location) -> Location:
    """Find the work folder. All that is in it may be deleted, so it must be a folder, and no link to another one."""
    work = output / WORK_FOLDER
    if isinstance(work, Path) and work.is_symlink():
        raise UsageError(f"{work} is a symbolic link, not a folder that a run made", help="remove the link")
    return work
