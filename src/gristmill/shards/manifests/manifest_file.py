"""The file `manifest.json`: written in pieces, read with care, and what a folder without it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.manifests.manifest import FORMAT_VERSION, Manifest
from gristmill.shards.manifests.stored_files import MANIFEST, REBUILD, Shard
from gristmill.storage.locations import list_names, parse_location
from gristmill.storage.stored_paths import StoredName, decode_stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.shards.manifests.stored_files import StoredFile
    from gristmill.storage.locations import Location

MAX_LISTED_SHARDS = 10_000
"""The number of shards up to which the manifest itself lists them."""


def dump_manifest(manifest: Manifest) -> Iterator[bytes]:
    """Encode the manifest in pieces: JSON with the fields in the order of the struct, one line for each input file.

    There may be a hundred thousand input files, so their text is never held as a whole.
    """
    listed = msgspec.structs.replace(manifest, files={}, splits={} if manifest.shard_list else manifest.splits)
    body = msgspec.json.format(msgspec.json.encode(listed), indent=2)
    if not manifest.files:
        yield body
        yield b"\n"
        return
    yield body.removesuffix(b"{}\n}")  # `files` is the last field
    separator = b"{"
    for key, file in manifest.files.items():
        yield separator + b'\n    "' + key.encode() + b'": ' + msgspec.json.encode(file)
        separator = b","
    yield b"\n  }\n}\n"


def load_manifest(folder: str | Location) -> Manifest:
    """Load the manifest of a dataset. The error for another folder says what the folder is instead."""
    root = parse_location(folder)
    path = root / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _make_not_a_dataset_error(root) from None
    return parse_manifest(data, path)


def parse_manifest(data: bytes, file: str | Location) -> Manifest:
    """Decode a manifest from the content of its file. The list of its shards may be in a file beside it."""
    path = os.fspath(file)
    version = _read_format_version(path, data)
    if version != FORMAT_VERSION:
        remedy = "upgrade Gristmill" if version > FORMAT_VERSION else "build the dataset again, in another folder"
        raise UsageError(
            f"{path} has format version {version}, and this Gristmill reads version {FORMAT_VERSION}: {remedy}"
        )
    manifest = decode_stored(data, Manifest, path, help="build the dataset again, in another folder")
    if not manifest.shard_list:
        return manifest
    return msgspec.structs.replace(
        manifest, splits=_read_listed_shards(manifest.shard_list, parse_location(file).parent)
    )


def _read_listed_shards(file: StoredFile, folder: Location) -> dict[str, dict[str, list[Shard]]]:
    """Read the shards from the file that lists them, which may come from anywhere."""
    from gristmill.shards.shard_list import read_shard_list  # noqa: PLC0415  (only for very many shards)

    splits: dict[str, dict[str, list[Shard]]] = {}
    try:
        for line in read_shard_list(file.copy_below(folder), file.xxh3):
            split, source = (msgspec.convert(line.pop(name), StoredName) for name in ("split", "source"))
            splits.setdefault(split, {}).setdefault(source, []).append(msgspec.convert(line, Shard))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:  # msgspec's error is a ValueError
        raise DamagedDatasetError(f"{folder}/{file.path} is damaged: {error}", help=REBUILD) from error
    return splits


def _read_format_version(path: str, data: bytes) -> int:
    class Head(msgspec.Struct):
        format_version: int

    try:
        return msgspec.json.decode(data, type=Head).format_version
    except msgspec.ValidationError:
        raise UsageError(f"{path} was not written by Gristmill", help="name the output folder of a run") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedDatasetError(f"{path} is damaged: {error}", help=REBUILD) from error


def _make_not_a_dataset_error(folder: Location) -> UsageError:
    if not folder.exists():
        return UsageError(f"there is no folder {folder}", help="name the output folder of a finished run")
    if not folder.is_dir():
        return UsageError(f"{folder} is a file, not the folder of a dataset", help="name the output folder of a run")
    if any(name.startswith(".gristmill") for name in list_names(folder)):
        return UsageError(
            f"{folder} holds an unfinished run: it has no {MANIFEST} yet",
            help=f"gristmill status {folder} shows whether it is still running; if not, the same recipe resumes it",
        )
    if isinstance(folder, Path) and (folder.parent / MANIFEST).is_file():
        return UsageError(
            f"{folder} is only a part of the dataset in {folder.parent}",
            help=f"name {folder.parent}, and the split where there is a choice",
        )
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return UsageError(
            f"{folder} is a Hugging Face dataset, not a Gristmill dataset", help='use it as a source: {read: "…"}'
        )
    return UsageError(f"{folder} is not a dataset: it has no {MANIFEST}", help="name the output folder of a run")
