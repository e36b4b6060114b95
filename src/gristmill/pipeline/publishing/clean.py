"""Locking an output folder for one run at a time, and removing what a killed run left: work folder, temporary files."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.pipeline import work_folder
from gristmill.pipeline.publishing import journal
from gristmill.pipeline.publishing.failed_run import remove_failed_run
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.commit import make_folder
from gristmill.storage.folders import open_folder
from gristmill.storage.leases import hold_output
from gristmill.storage.lock import LOCK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The files that `clean` has removed."""

    files: list[str]
    """Paths relative to the folder; of intermediate data that was elsewhere, the whole paths."""
    num_bytes: int
    is_dataset: bool
    """Whether the folder holds a finished dataset, which was not touched."""


def clean(folder: Location, *, take_over: bool = False) -> CleanResult:
    """Clean an output folder. Folders that no run made, and folders that a run is using, are refused."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", help="name the output folder of a run")
    work_folder.check_output_folder(folder)
    with hold_output(folder, MANIFEST, work_folder.LEASE, take_over=take_over) as held:
        work_folder.check_intermediate_folder(folder)
        place = work_folder.find_intermediate_folder(folder)
        before = _measure_files(folder) | _measure_intermediate_files(place)
        journal.recover_interrupted_publish(folder, held.run_id)
        manifest = journal.find_manifest(folder)
        is_dataset = manifest is not None
        if is_dataset:
            journal.prune_work_folder(folder)
        else:
            remove_failed_run(folder)
            work_folder.remove_work_folder(folder)
        journal.remove_orphans(folder, manifest, held)
        held.release_old_epochs()
        after = _measure_files(folder) | _measure_intermediate_files(place)
    removed = sorted(before.keys() - after.keys())
    return CleanResult(removed, sum(before[path] for path in removed), is_dataset)


def _measure_intermediate_files(place: Location | None) -> dict[str, int]:
    return (
        {} if place is None else {str(place / path): num_bytes for path, num_bytes in open_folder(place).list_below()}
    )


def _measure_files(folder: Location) -> dict[str, int]:
    return {
        path: num_bytes
        for path, num_bytes in open_folder(folder).list_below()
        if path.rpartition("/")[2] != LOCK_NAME and not work_folder.is_lease_path(path)
    }


@contextmanager
def lock_output(folder: Location, *, take_over: bool = False) -> Iterator[HeldOutput]:
    """Make and lock a folder, and recover from an interrupted publish. `take_over`: from a run that may be alive."""
    work_folder.check_output_folder(folder)
    make_folder(folder)
    with hold_output(folder, MANIFEST, work_folder.LEASE, take_over=take_over) as held:
        journal.recover_interrupted_publish(folder, held.run_id)
        yield held
