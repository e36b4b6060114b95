"""Looking up datasets with kept signatures while a run is planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.shards.kept_signatures import INDEX, load_kept_signatures
from gristmill.storage.locations import list_files_below, parse_location
from gristmill.storage.urls import OBJECT_STORES, find_protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.storage.locations import Location

_KEEPING = frozenset({None, *OBJECT_STORES})
"""The protocols of folders that keep signatures."""


def find_kept_folders(patterns: str | Sequence[str], base: str) -> list[str]:
    """Return the folders that patterns name, if all are datasets of one store with kept signatures; else none."""
    names = [patterns] if isinstance(patterns, str) else list(patterns)
    protocols = {find_protocol(name) for name in names}
    if len(protocols) > 1 or not protocols <= _KEEPING:
        return []
    folders = [_find_folder(name, base) for name in names]
    return [str(folder) for folder in folders] if all((folder / INDEX).is_file() for folder in folders) else []


def _find_folder(name: str, base: str) -> Location:
    folder = parse_location(name)
    return Path(base, folder).absolute() if isinstance(folder, Path) else folder


def has_lost_shards(folders: Sequence[str]) -> bool:
    """Whether shards that were signed are no longer there."""
    for folder in map(parse_location, folders):
        index = load_kept_signatures(folder)
        if index is not None and not {shard.path for shard in index.shards} <= dict(list_files_below(folder)).keys():
            return True
    return False


def hash_kept_signatures(folder: str) -> str:
    """Hash the index of kept signatures: it names all files with their checksums."""
    return xxhash.xxh3_64_hexdigest((parse_location(folder) / INDEX).read_bytes())
