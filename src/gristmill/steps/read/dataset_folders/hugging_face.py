"""Folders written by `datasets`' `save_to_disk`, read without that package.

A dataset is a folder with `state.json`, which names its Arrow files; a DatasetDict is a folder with
`dataset_dict.json`, which names folders of datasets. Other files in them (caches of earlier maps, descriptions) are not
data.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gristmill.core.errors import UsageError
from gristmill.storage.files import open_input
from gristmill.storage.stored_paths import StoredName, StoredPath  # noqa: TC001  (msgspec looks at types of fields)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.storage.listing.paths import ListedFile

_Described = TypeVar("_Described", bound=msgspec.Struct)
_STATE = "state.json"
_SPLITS = "dataset_dict.json"


class _DataFile(msgspec.Struct):
    filename: StoredPath


class _State(msgspec.Struct):
    data_files: list[_DataFile] = msgspec.field(name="_data_files")
    indices_files: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


class _Splits(msgspec.Struct):
    splits: list[StoredName]


def is_dataset_folder(files: Sequence[ListedFile]) -> bool:
    """Whether a listing is that of a saved dataset: its description is in the listed folder itself."""
    return any(file.relative in (_STATE, _SPLITS) for file in files)


def find_saved_files(listed_files: Sequence[ListedFile]) -> dict[str, list[ListedFile]]:
    """Find the Arrow files of all datasets in a listing, by split; files of no DatasetDict are under an empty name."""
    by_relative = {file.relative: file for file in listed_files}
    states = [file for file in listed_files if posixpath.basename(file.relative) == _STATE]
    split_of = {
        state: split
        for file in listed_files
        if posixpath.basename(file.relative) == _SPLITS
        for state, split in _split_states(file, by_relative).items()
    }
    if not states:
        raise UsageError(
            f"no {_STATE} among {len(listed_files)} files: not a folder written by save_to_disk",
            help="name the dataset's folder itself, without a pattern",
        )
    splits: dict[str, dict[str, ListedFile]] = {}
    for state in states:
        folder = posixpath.dirname(state.relative)
        described = _load(state, _State)
        if described.indices_files:
            raise UsageError(
                f"{state.path}: the dataset is a selection of rows of other files",
                help="save it again after flatten_indices()",
            )
        files = splits.setdefault(split_of.get(state.relative, ""), {})
        for entry in described.data_files:
            relative = posixpath.join(folder, entry.filename)
            files[relative] = _require_file(by_relative, relative, state)
    if not any(splits.values()):
        raise UsageError(
            f"{posixpath.dirname(states[0].path)}: the saved dataset is empty: its {_STATE} names no data files",
            help="check what was saved there, or leave the source out",
        )
    return {split: list(files.values()) for split, files in splits.items()}


def _split_states(file: ListedFile, by_relative: dict[str, ListedFile]) -> dict[str, str]:
    """Return the splits of a DatasetDict by the paths of their states."""
    folder = posixpath.dirname(file.relative)
    states = {posixpath.join(folder, split, _STATE): split for split in _load(file, _Splits).splits}
    for state in states:
        _require_file(by_relative, state, file)
    return states


def _require_file(by_relative: dict[str, ListedFile], relative: str, describing: ListedFile) -> ListedFile:
    if relative not in by_relative:
        raise UsageError(
            f"{describing.path} names {relative}, which does not exist",
            help=f"get {posixpath.basename(relative)} from where the folder came from, or save the dataset again",
            path=relative,
        )
    return by_relative[relative]


def _load(file: ListedFile, kind: type[_Described]) -> _Described:
    with open_input(file.path) as stream:
        data = stream.read()
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file.path}: not written by save_to_disk: {error}") from error
