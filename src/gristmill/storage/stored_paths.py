"""Paths and counts in stored files, which are untrusted until they are checked.

A manifest, a journal or a receipt names files of its own folder, and a run reads, moves and deletes what it names.
Anybody may have written it. So every such path has the type `StoredPath`, which refuses absolute paths and `..` when
the file is decoded (`decode_stored`). It becomes a path on the disk only through `path_below`, which also refuses
symbolic links that leave the folder. Cost: one `lstat` for each component of the path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, TypeVar, overload

import msgspec

from gristmill.core.errors import DamagedDatasetError
from gristmill.storage.locations import Location, StorePath

_PART = r"(?!\.{1,2}(?:/|\Z))[^/\0]+"
_PATH = rf"\A{_PART}(?:/{_PART})*\Z"

StoredPath = Annotated[str, msgspec.Meta(pattern=_PATH)]
"""A path relative to the folder of the file that names it, with forward slashes; also a key of an object store."""
StoredName = Annotated[str, msgspec.Meta(pattern=rf"\A{_PART}\Z")]
"""One component of such a path, such as the name of a split or source, which is a folder."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""A number of rows, tokens or bytes. Sums fit into 64 bits."""

T = TypeVar("T")

_DEFAULT_HELP = "nothing was deleted; check what is in the folder, or choose another one"

_is_path = re.compile(_PATH).search


def decode_stored(data: bytes, kind: type[T], path: str | os.PathLike[str], *, help: str = _DEFAULT_HELP) -> T:
    """Decode the content of the file at `path`.

    Raises:
        DamagedDatasetError: It is not JSON of this kind, or names a path outside of its folder.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = str(error)
        if repr(_PART)[1:-1] in problem:
            problem = f"it names a file outside of its folder, at {problem.rpartition(' - at ')[2]}"
        raise DamagedDatasetError(f"{os.fspath(path)} is damaged: {problem}", help=help) from error


@overload
def path_below(folder: str | Path, stored: str) -> Path: ...
@overload
def path_below(folder: StorePath, stored: str) -> StorePath: ...
@overload
def path_below(folder: Location, stored: str) -> Location: ...
def path_below(folder: str | Location, stored: str) -> Location:
    """Return a stored path as a path on the disk or a store, below its folder.

    Raises:
        DamagedDatasetError: It is not below the folder, or a symbolic link on the way leaves the folder.
    """
    if not _is_path(stored):
        raise DamagedDatasetError(
            f"{stored!r} is not a path inside {os.fspath(folder)}", help="nothing was read, moved or deleted there"
        )
    if isinstance(folder, StorePath):  # a key has no links
        return folder / stored
    path = str(folder)
    for part in stored.split("/"):
        path = f"{path}/{part}"
        if os.path.islink(path) and not _is_below(path, folder):  # noqa: PTH114  (for each of many shards)
            raise DamagedDatasetError(
                f"{path} is a symbolic link that leaves {os.fspath(folder)}",
                help="copy the folder with its links followed, for example with `cp -rL`",
            )
    return Path(folder, stored)


def _is_below(path: str, folder: str | os.PathLike[str]) -> bool:
    root = os.path.realpath(folder).rstrip("/") + "/"
    return os.path.realpath(path).startswith(root)
