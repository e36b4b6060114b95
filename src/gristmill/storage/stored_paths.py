"""Paths and counts that files of ours hold, foreign until they are checked.

A manifest, a note or a receipt names files of the folder that it lies in, and a run reads, moves and deletes what it
names. Anybody may have written it. So every such path has the type `StoredPath`, which no absolute path and no `..`
passes when the file is decoded (`decode_stored`), and becomes a place on the disk only by `path_below`, which also
refuses a symbolic link on the way that leaves the folder. Cost: one `lstat` for each part of the path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from gristmill.core.errors import DamagedDatasetError

_PART = r"(?!\.{1,2}(?:/|\Z))[^/\0]+"
_PATH = rf"\A{_PART}(?:/{_PART})*\Z"

StoredPath = Annotated[str, msgspec.Meta(pattern=_PATH)]
"""Relative to the folder of the file that holds it, with forward slashes; the same for keys of object stores."""
StoredName = Annotated[str, msgspec.Meta(pattern=rf"\A{_PART}\Z")]
"""A part of such a path: the name of a split or of a source is the name of a folder."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""Of rows, tokens or bytes. Any sum of them fits into 64 bits."""

T = TypeVar("T")

_DEFAULT_HELP = "nothing was deleted; look at what is in the folder, or choose another one"

_is_path = re.compile(_PATH).search


def decode_stored(data: bytes, kind: type[T], path: str | os.PathLike[str], *, help: str = _DEFAULT_HELP) -> T:
    """What the file at `path` holds.

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


def path_below(folder: str | os.PathLike[str], stored: str) -> Path:
    """The place of a stored path in its folder.

    Raises:
        DamagedDatasetError: It is not below the folder, or a symbolic link on the way leaves it.
    """
    if not _is_path(stored):
        raise DamagedDatasetError(
            f"{stored!r} is not a path inside of {os.fspath(folder)}", help="nothing was read, moved or deleted there"
        )
    place = str(folder)
    for part in stored.split("/"):
        place = f"{place}/{part}"
        if os.path.islink(place) and not _is_below(place, folder):  # noqa: PTH114  (for each of many shards)
            raise DamagedDatasetError(
                f"{place} is a symbolic link that leaves {os.fspath(folder)}",
                help="copy the folder with its links followed, for example with `cp -rL`",
            )
    return Path(folder, stored)


def _is_below(place: str, folder: str | os.PathLike[str]) -> bool:
    root = os.path.realpath(folder).rstrip("/") + "/"
    return os.path.realpath(place).startswith(root)
