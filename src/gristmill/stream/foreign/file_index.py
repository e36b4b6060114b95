"""What one pass over a foreign file found out, kept in the user's cache folder for the next process.

An entry is named by the path, size and version of its file, so it is never stale; where nothing can be written, every
process makes the pass. Remote files are looked at by several threads, because each waits for its store.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.shards.manifests.stored_files import Shard
from gristmill.storage.commit import make_folder, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.shards.lane_blocks import LaneBlocks
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.listing.paths import ListedFile
    from gristmill.stream.foreign.table_blocks import TableFile

    Arrays = Mapping[str, NDArray[Any]]

_NUM_THREADS = 8


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file of others, with what a stream must know to read it like a shard."""

    key: str
    """Identifies the file with its content: by path, size and version."""
    version: str
    blocks: LaneBlocks
    starts: NDArray[np.int64] | None = None
    """Where each sample of a tar begins, and where the last one ends."""
    table: TableFile | None = None


@dataclass(frozen=True, slots=True)
class ForeignDataset:
    """Files of others, described as if they were a dataset of Gristmill."""

    folder: str
    manifest: Manifest
    files: dict[str, ForeignFile]
    """By path."""


def identify_file(file: ListedFile) -> str:
    """Return a name for a file with its present content, among all files of this machine and of all stores."""
    place = file.path if "://" in file.path else os.path.realpath(file.path)
    return xxhash.xxh3_128_hexdigest(f"{place}\0{file.num_bytes}\0{file.version}".encode())


def describe_shard(file: ListedFile, num_rows: int) -> Shard:
    """Describe a file as a shard. Its checksum is that of its name, size and version: the content has none."""
    identity = xxhash.xxh3_64_hexdigest(f"{file.relative}\0{file.num_bytes}\0{file.version}".encode())
    return Shard(path=file.relative, bytes=file.num_bytes, xxh3=identity, rows=num_rows)


def index_files(
    files: Sequence[ListedFile],
    kind: str,
    make: Callable[[ListedFile], Arrays],
    is_usable: Callable[[Arrays, ListedFile], bool],
) -> list[Arrays]:
    """Return what `make` finds out about each file, from the cache where it is there and `is_usable`."""

    def index_one(file: ListedFile) -> Arrays:
        path = Path(choose_cache_folder(str(Path.home()), sys.platform, kind), f"{identify_file(file)}.npz")
        arrays = _load(path)
        if arrays is None or not is_usable(arrays, file):
            arrays = make(file)
            sink = io.BytesIO()
            np.savez(sink, allow_pickle=False, **arrays)
            with suppress(OSError):  # only the next process is slower
                make_folder(path.parent)
                write_file(str(path), sink.getvalue(), kind)
        return arrays

    if not any("://" in file.path for file in files):
        return [index_one(file) for file in files]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(index_one, files))


def _load(path: Path) -> Arrays | None:
    """Load what an earlier pass found; None if there is nothing, or something that cannot be right."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
