"""Folders that `datasets` has written with `save_to_disk`: their splits and data files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import UsageError
from gristmill.shards.manifests.stored_files import MANIFEST
from gristmill.storage.listing.paths import find_files
from gristmill.storage.locations import list_names, parse_location

if TYPE_CHECKING:
    from gristmill.storage.listing.paths import ListedFile
    from gristmill.storage.locations import Location

_STATE, _DICT = "state.json", "dataset_dict.json"
_SPLIT = re.compile(r"\w[\w.-]*")
_DATA_FILE = re.compile(r"[^/]+\.arrow")


class _FolderState(msgspec.Struct):
    """The part of `state.json` that a stream needs."""

    files: list[dict[str, str]] = msgspec.field(name="_data_files")
    indices: Any = msgspec.field(name="_indices_files", default=None)


def names_tables(path: str) -> bool:
    """Whether a path names Parquet files, or a folder that `datasets` has written."""
    if path.endswith(".parquet"):
        return not Path(path, MANIFEST).is_file()
    folder = parse_location(path)
    if (folder / MANIFEST).is_file() or not any((folder / name).is_file() for name in (_STATE, _DICT)):
        return False
    if (
        isinstance(folder, Path) and (folder.parent / MANIFEST).is_file()
    ):  # a split of a dataset of ours: its error says so
        return False
    # A run of ours writes these files before its manifest.
    return not any(name.startswith(".gristmill") for name in list_names(folder))


def list_data_files(folder: Location) -> dict[str, list[ListedFile]]:
    """List the files of each split of a folder that `save_to_disk` has written."""
    try:
        if not (folder / _DICT).exists():
            return {"train": _list_split(folder, folder)}
        splits = msgspec.json.decode((folder / _DICT).read_bytes(), type=dict[str, list[str]])["splits"]
        if strange := next((split for split in splits if not _SPLIT.fullmatch(split)), None):
            raise UsageError(f"{folder}: {_DICT} names the split {strange!r}", help="save the dataset again")
        return {split: _list_split(folder, folder / split) for split in splits}
    except (msgspec.DecodeError, KeyError, FileNotFoundError) as error:
        raise UsageError(f"{folder} is not a dataset of `datasets`: {error}", help="save it again") from error


def _list_split(root: Location, folder: Location) -> list[ListedFile]:
    state = msgspec.json.decode((folder / _STATE).read_bytes(), type=_FolderState)
    if state.indices:
        raise UsageError(
            f"{folder} is a selection of another dataset", help="save what dataset.flatten_indices() returns"
        )
    names = [str(file.get("filename")) for file in state.files]
    if strange := next((name for name in names if not _DATA_FILE.fullmatch(name)), None):
        raise UsageError(f"{folder}: {_STATE} names the file {strange!r}", help="save the dataset again")
    listed = {file.relative: file for file in find_files(str(root))}
    prefix = "" if root == folder else f"{folder.name}/"
    missing = next((name for name in names if prefix + name not in listed), None)
    if missing is not None:
        raise UsageError(f"{folder}: {missing} is missing", help="copy the whole folder")
    return [listed[prefix + name] for name in names]
