"""Tars of others as a dataset to stream: one pass over their headers finds where each sample begins.

The pass takes about 9 µs a member. What it found is kept in the user's cache folder under the path, size and time of
the tar, 8 bytes a sample; where that cannot be written, every process makes the pass.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.errors import UsageError
from gristmill.core.media import SAMPLES
from gristmill.shards.manifest import Manifest, Schema, Shard
from gristmill.storage.commit import make_folder, write_file
from gristmill.storage.paths import find_files
from gristmill.storage.tar_index import index_tar
from gristmill.storage.tar_scan import split_sample_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.storage.paths import ListedFile
    from gristmill.storage.tar_index import TarIndex

SOURCE = "tars"


def names_tars(path: str) -> bool:
    """Whether a path names tars, not the folder of a dataset: `shards/a-{000..099}.tar`, `shards/*.tar`."""
    return path.endswith(".tar")


def describe_tars(pattern: str) -> tuple[str, Manifest, dict[str, NDArray[np.int64]]]:
    """Describe tars as a dataset: its folder, its manifest, and by path where each sample of a tar begins."""
    files = find_files(pattern)
    folder = files[0].path[: -len(files[0].relative)]
    starts = {file.path: _find_starts(file) for file in files}
    shards = [
        Shard(
            path=file.relative,
            bytes=file.num_bytes,
            xxh3=xxhash.xxh3_64_hexdigest(f"{file.relative}\0{file.num_bytes}\0{file.version}".encode()),
            rows=len(starts[file.path]) - 1,
        )
        for file in files
    ]
    manifest = Manifest(
        kind=SAMPLES,
        format="webdataset",
        schema=Schema.of(pa.schema([])),
        splits={"train": {SOURCE: shards}},
        books={},
        recipe={},
        versions={},
    ).seal()
    return folder, manifest, starts


def _find_starts(file: ListedFile) -> NDArray[np.int64]:
    key = xxhash.xxh3_128_hexdigest(f"{os.path.realpath(file.path)}\0{file.num_bytes}\0{file.version}".encode())
    cached = Path(choose_cache_folder(str(Path.home()), sys.platform, "tars"), f"{key}.npy")
    starts = _load_starts(cached, file.num_bytes)
    if starts is None:
        starts = _list_starts(index_tar(file.path), file.path)
        sink = io.BytesIO()
        np.save(sink, starts)
        with suppress(OSError):  # only the next process is slower
            make_folder(cached.parent)
            write_file(str(cached), sink.getvalue(), "tars")
    return starts


def _load_starts(path: Path, tar_bytes: int) -> NDArray[np.int64] | None:
    """Load what an earlier pass found; None if there is nothing, or something that cannot be right."""
    try:
        with path.open("rb") as file:
            starts: NDArray[np.int64] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_usable = starts.dtype == np.int64 and starts.ndim == 1 and len(starts)
    if not is_usable or starts[0] < 0 or starts[-1] > tar_bytes or (np.diff(starts) <= 0).any():
        return None
    return starts


def _list_starts(index: TarIndex, path: str) -> NDArray[np.int64]:
    """List where each sample begins, and where the last one ends."""
    if index.fault is not None:
        raise UsageError(
            f"{path}: {index.fault}", help="write it again, or read it with a recipe, which keeps what came before"
        )
    starts: list[int] = []
    end, current = 0, None
    for member in index.members():
        if not member.isreg():
            continue
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise UsageError(f"{path}: the member {member.name!r} points outside the archive", help="remove it")
        parts = split_sample_name(member.name)
        if parts is None:
            continue
        if parts[0] != current:
            starts.append(member.header)
            current = parts[0]
        end = member.data + -(-member.size // 512) * 512
    if not starts:
        raise UsageError(f"{path}: it has no sample", help="members of a sample have a name and an extension")
    return np.array([*starts, end], np.int64)
