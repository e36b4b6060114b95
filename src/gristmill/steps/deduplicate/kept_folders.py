"""Looking up datasets with kept signatures while a run is planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.shards.kept_signatures import INDEX, load_kept_signatures

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_kept_folders(patterns: str | Sequence[str], base: str) -> list[str]:
    """Return the folders that patterns name, if all are local datasets with kept signatures; else none."""
    names = [patterns] if isinstance(patterns, str) else list(patterns)
    folders = [Path(base, Path(name).expanduser()).absolute() for name in names if "://" not in name]
    has_all = len(folders) == len(names) and all((folder / INDEX).is_file() for folder in folders)
    return [str(folder) for folder in folders] if has_all else []


def has_lost_shards(folders: Sequence[str]) -> bool:
    """Whether shards that were signed are no longer there."""
    for folder in map(Path, folders):
        index = load_kept_signatures(folder)
        if index is not None and not all((folder / shard.path).is_file() for shard in index.shards):
            return True
    return False


def hash_kept_signatures(folder: str) -> str:
    """Hash the index of kept signatures: it names all files with their checksums."""
    return xxhash.xxh3_64_hexdigest(Path(folder, INDEX).read_bytes())
