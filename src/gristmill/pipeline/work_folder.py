"""The output folder and the work folder in it: the names of what a run keeps there, and who owns it.

Nothing that Gristmill did not make is deleted. All paths below `.gristmill` are spelled here, but for that of
intermediate data, which the clock of stores knows too.

Intermediate data, which one stage leaves for the next, is in the work folder too, or where `work` in the recipe says.
There a run makes a separate folder, whose name and content hold a token. The same token is in a pointer in the work
folder. So whoever has the output finds the data, and nothing without the token is ever deleted.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.commit import make_folder, remove_temporaries, write_file
from gristmill.storage.folders import KnownFiles, open_folder
from gristmill.storage.locations import (
    StoredName,
    decode_stored,
    is_remote,
    list_names,
    parse_location,
    path_below,
)
from gristmill.storage.lock import LOCK_NAME
from gristmill.storage.stores.credentials import is_named
from gristmill.storage.stores.retries import INTERMEDIATE_DATA
from gristmill.storage.urls import find_bucket

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
FAILED_RUN = f"{WORK_FOLDER}/failed.json"
"""Why the last run has failed, and which records it has refused."""
_IN_PROCESS_MARKER = f"{WORK_FOLDER}/in-process"
"""There while a run works in its own process. One that is found without a run was left by a run that died."""
_TASK_FILES = f"{WORK_FOLDER}/work"
_SPOOLED_RECORDS = f"{WORK_FOLDER}/records"
_WRITTEN_IN_PLACE = (_TASK_FILES, INTERMEDIATE_DATA, _SPOOLED_RECORDS, RECEIPTS, UNIT_RECEIPTS)
"""What a run writes into or appends to. A link there could lead to files of other people."""
_POINTER = f"{WORK_FOLDER}/intermediate.json"
"""Where the intermediate data is, if it is not in the work folder."""
_OWN_NAMES = {
    path.split("/")[1]
    for path in (
        *(RECEIPTS, RECEIPTS.removesuffix(".jsonl")),  # where several machines write, a folder of files
        *(UNIT_RECEIPTS, UNIT_RECEIPTS.removesuffix(".jsonl")),
        PLUGINS,
        JOURNAL,
        LEASE,
        STATUS,
        FAILED_RUN,
        *_WRITTEN_IN_PLACE,
        _IN_PROCESS_MARKER,
        _POINTER,
    )
}
"""What a run puts into its work folder. Everything else there was put there by someone else, and stays."""
_OWNER = "gristmill-owner.json"
"""In a folder of intermediate data: the output that it belongs to."""

_log = logging.getLogger("gristmill")


def work_path(name: str) -> str:
    """Return where a run puts a file until it is published, relative to the output folder."""
    return f"{_TASK_FILES}/{name}"


def stored_path(name: str) -> str:
    """Return where a run puts intermediate data, relative to the output folder or to the recipe's own place for it."""
    return f"{INTERMEDIATE_DATA}/{name}"


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
        if output.is_symlink():
            raise UsageError(
                f"the output {output} is a link to {output.resolve()}, which does not exist",
                help="make that folder, or remove the link",
            )
        return
    if not output.is_dir():
        raise UsageError(f"the output {output} is a file", help="choose another output folder")
    names = {*list_names(output)} - {LOCK_NAME}
    has_work = WORK_FOLDER in names and (
        names == {WORK_FOLDER} or not _OWN_NAMES.isdisjoint(list_names(output / WORK_FOLDER))
    )
    if names and MANIFEST not in names and not has_work:
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
    problem = open_folder(output).find_obstacle()
    if problem is not None and not (output / MANIFEST).exists():  # a finished dataset may be up to date as it is
        raise UsageError(f"{output} cannot be written: {problem}", help="choose another folder")


def has_in_process_marker(output: Location) -> bool:
    """Tell whether a run works in its own process, or died there."""
    return not is_remote(output) and os.path.lexists(output / _IN_PROCESS_MARKER)


@contextmanager
def mark_in_process(output: Location) -> Iterator[None]:
    """Keep the marker as long as a run works in its own process. Only the end of the process itself leaves it behind.

    It is not synced: a crash of the machine is no record's fault.
    """
    if is_remote(output):
        yield
        return
    marker = Path(output / _IN_PROCESS_MARKER)
    marker.parent.mkdir(exist_ok=True)
    os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield
    finally:
        remove_in_process_marker(output)


def remove_in_process_marker(output: Location) -> None:
    """Remove the marker: the dataset is finished, or the run has ended without dying."""
    if not is_remote(output):
        (output / _IN_PROCESS_MARKER).unlink(missing_ok=True)


def remove_work_folder(output: Location, paths_to_keep: Collection[str] = ()) -> None:
    """Remove the work folder except for some files, and all temporary files of runs that were killed.

    Intermediate data in another place goes first: without the pointer no one would find it again.
    """
    if not any(path.startswith(f"{INTERMEDIATE_DATA}/") for path in paths_to_keep):
        remove_intermediate_data(output)
    elif (place := find_intermediate_folder(output)) is not None:
        paths_to_keep = {*paths_to_keep, _POINTER}
        open_folder(place).remove_tree({*paths_to_keep, _OWNER}.__contains__)
    remove_temporaries(output, None)

    def keeps(path: str) -> bool:
        name = f"{WORK_FOLDER}/{path}"
        return path.partition("/")[0] not in _OWN_NAMES or name in paths_to_keep or is_lease_path(name)

    open_folder(_find_work_folder(output)).remove_tree(keeps)


def _find_work_folder(output: Location) -> Location:
    """Find the work folder. All that is in it may be deleted, so it must be a folder, and no link to another one."""
    work = output / WORK_FOLDER
    if work.is_symlink():
        raise UsageError(f"{work} is a symbolic link, not a folder that a run made", help="remove the link")
    return work


class IntermediatePointer(msgspec.Struct, frozen=True, kw_only=True):
    """The place that a run has made for its intermediate data: `folder/gristmill-TOKEN`."""

    folder: str
    """What the recipe says, as an absolute path or a URL."""
    token: StoredName

    def locate(self) -> Location:
        return parse_location(self.folder) / f"gristmill-{self.token}"


class IntermediateOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The note in a folder of intermediate data about the output that it belongs to."""

    token: str
    output: str


def find_intermediate_folder(output: Location) -> Location | None:
    """Find the folder of intermediate data of an unfinished run; None if it is in the work folder, or there is none."""
    pointer = _read_pointer(output)
    return None if pointer is None else pointer.locate()


def check_intermediate_folder(output: Location) -> None:
    """Refuse a pointer to a bucket that the user has not named: the output may come from someone else."""
    pointer = _read_pointer(output)
    if pointer is None or is_named(pointer.folder):
        return
    bucket = find_bucket(pointer.folder)
    if is_remote(output) and find_bucket(str(output)) == bucket:
        return
    raise UsageError(
        f"{output / _POINTER} names intermediate data in {pointer.locate()}; nothing there was opened or removed",
        help=f"if that is yours: gristmill clean {output} --bucket {bucket}; if not, delete that file",
    )


def open_intermediate_folder(output: Location, folder: Location | None, run_id: str) -> Location:
    """Make the folder of a run's intermediate data, or find that of the run which is resumed; None: the output.

    What an earlier run has left in another place is removed: this run cannot use it.
    """
    pointer = _read_pointer(output)
    if pointer is not None and (folder is None or pointer.folder != str(folder) or _is_of_another(output, pointer)):
        remove_intermediate_data(output)
        pointer = None
    if folder is None:
        return output
    if pointer is None:
        pointer = IntermediatePointer(folder=str(folder), token=secrets.token_hex(8))
        write_file(output / _POINTER, msgspec.json.encode(pointer), run_id)
    place = pointer.locate()
    if _read_owner(pointer) is None:
        owner = IntermediateOwner(token=pointer.token, output=str(output))
        make_folder(place)
        write_file(place / _OWNER, msgspec.json.encode(owner), run_id)
    return place


def remove_intermediate_data(output: Location) -> None:
    """Remove the folder of intermediate data that the pointer of an output names, and then the pointer."""
    pointer = _read_pointer(output)
    if pointer is None:
        return
    check_intermediate_folder(output)
    place = pointer.locate()
    if _read_owner(pointer) is not None and not _is_of_another(output, pointer):
        folder = open_folder(place)
        folder.abort_uploads()
        folder.remove_tree(_OWNER.__eq__)  # its name last: what is interrupted is removed the next time
        folder.remove_tree()
    (output / _POINTER).unlink(missing_ok=True)


def _read_pointer(output: Location) -> IntermediatePointer | None:
    path = output / _POINTER
    return decode_stored(path.read_bytes(), IntermediatePointer, path) if path.is_file() else None


def _read_owner(pointer: IntermediatePointer) -> IntermediateOwner | None:
    """Read the note in the folder that was made for a pointer; None if it was not, or is a link to another one."""
    place = pointer.locate()
    if place.is_symlink():
        return None
    path = place / _OWNER
    owner = decode_stored(path.read_bytes(), IntermediateOwner, path) if path.is_file() else None
    return owner if owner is not None and owner.token == pointer.token else None


def _is_of_another(output: Location, pointer: IntermediatePointer) -> bool:
    """Tell whether the folder is in use for another output, of which this one is a copy; a moved one keeps its data."""
    owner = _read_owner(pointer)
    maker = None if owner is None else parse_location(owner.output)
    if (
        maker is None
        or is_remote(maker)
        or is_remote(output)
        or not maker.is_dir()
        or maker.resolve() == output.resolve()
    ):
        return False
    return _read_pointer(maker) == pointer


class RunFiles:
    """The files that receipts name: those of the output, and intermediate data, which may be in another place."""

    def __init__(self, output: Location, intermediate: Location) -> None:
        self._output = output
        self._intermediate = intermediate
        self._output_files = KnownFiles(output)
        self._intermediate_files = self._output_files if intermediate == output else KnownFiles(intermediate)

    def locate(self, path: str) -> Location:
        """Return where a file is."""
        return path_below(self._intermediate if self.is_intermediate(path) else self._output, path)

    def is_intermediate(self, path: str) -> bool:
        """Tell whether a file is for a later stage, and not for the dataset."""
        return path.startswith(f"{INTERMEDIATE_DATA}/")

    def find_size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        return self._choose(path).find_size(path)

    def add(self, path: str, num_bytes: int) -> None:
        """Note a file that was written."""
        self._choose(path).add(path, num_bytes)

    def _choose(self, path: str) -> KnownFiles:
        return self._intermediate_files if self.is_intermediate(path) else self._output_files
