"""The error for a file of a dataset that is not what was written: it names the file, the problem and what to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import DamagedDatasetError

if TYPE_CHECKING:
    import os


def make_damage_error(
    path: str | os.PathLike[str], problem: str, folder: str | os.PathLike[str] | None = None
) -> DamagedDatasetError:
    """Make the error for a damaged file; `folder` is the dataset that it belongs to, where it is known.

    >>> print(make_damage_error("train/web/shard-00001.arrow", "is missing", "out"))
    train/web/shard-00001.arrow is missing
      help: run `gristmill verify out` to list all damage
    """
    command = "gristmill verify" if folder is None else f"gristmill verify {folder}"
    return DamagedDatasetError(f"{path} {problem}", help=f"run `{command}` to list all damage", shard=str(path))
