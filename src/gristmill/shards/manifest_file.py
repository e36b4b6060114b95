"""The file `manifest.json`: written in pieces, read with care, and what a folder without it is.

A very large dataset lists its shards in an Arrow stream next to the manifest: a hundred thousand shards are 30 MB of
JSON, which every reader would parse; as Arrow they are 8 MB. The checksum of the manifest covers the shards in both
cases.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.checks import describe_type
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.canonical import STREAM_END, read_mapped_batches, stream_block, stream_header
from gristmill.shards.manifest import FORMAT_VERSION, Manifest
from gristmill.shards.stored_files import MANIFEST, REBUILD, Shard
from gristmill.storage.files import compute_file_checksum
from gristmill.storage.locations import StoredName, decode_stored, is_remote, list_names, parse_location, read_stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gristmill.shards.stored_files import StoredFile, TokenizerIdentity
    from gristmill.storage.locations import Location


_BATCH_SHARDS = 1 << 14
_FILE = [("path", pa.string()), ("bytes", pa.uint64()), ("xxh3", pa.string())]
_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("source", pa.string()),
        *_FILE,
        ("rows", pa.uint64()),
        ("tokens", pa.uint64()),
        ("trained_tokens", pa.uint64()),
        ("tasks", pa.list_(pa.string())),
        ("origins", pa.struct(_FILE)),
    ]
)


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
        data = read_stored(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _make_not_a_dataset_error(root) from None
    return parse_manifest(data, path)


def parse_manifest(data: bytes, file: str | Location) -> Manifest:
    """Decode a manifest from the content of its file. The list of its shards may be in a file next to it."""
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
    splits: dict[str, dict[str, list[Shard]]] = {}
    describe_type(Shard)
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
    if not is_remote(folder) and (folder.parent / MANIFEST).is_file():
        return UsageError(
            f"{folder} is only a part of the dataset in {folder.parent}",
            help=f"name {folder.parent}, and the split where there is a choice",
        )
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return UsageError(
            f"{folder} is a Hugging Face dataset, not a Gristmill dataset", help='use it as a source: {read: "…"}'
        )
    return UsageError(f"{folder} is not a dataset: it has no {MANIFEST}", help="name the output folder of a run")


def encode_shard_list(lines: Sequence[dict[str, Any]]) -> Iterator[bytes | pa.Buffer]:
    """Encode the list in pieces: a line has the fields of a shard, and its `split` and `source`."""
    yield stream_header(_SCHEMA)
    for first in range(0, len(lines), _BATCH_SHARDS):
        batch = pa.RecordBatch.from_pylist(list(lines[first : first + _BATCH_SHARDS]), schema=_SCHEMA)
        yield stream_block(batch, _SCHEMA)
    yield STREAM_END


def read_shard_list(path: Path, checksum: str) -> Iterator[dict[str, Any]]:
    """Read the lines of the list. Nothing in them is checked: paths may lead anywhere.

    Raises:
        ValueError: It is not what was written.
    """
    if compute_file_checksum(path) != checksum:
        raise ValueError("its content has changed")
    for batch in read_mapped_batches(path, _SCHEMA):
        for line in batch.to_pylist():
            yield {name: value for name, value in line.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a tokenizer, in its present location."""

    path: str
    """A local path or a URL."""
    xxh3: str


@dataclass(frozen=True, slots=True)
class TokenizerSnapshot:
    """The identity of a tokenizer, and the files that are copied into the dataset."""

    identity: TokenizerIdentity
    """The identity without `files`: their paths in the dataset are not known yet."""
    files: Mapping[str, SnapshotFile]
    """The files by their usual names, `tokenizer.json` first."""

    @property
    def content(self) -> str:
        """The hash of the tokenizer. Ids of tokenizers with equal hashes can be mixed."""
        return self.identity.content

    @property
    def pad_id(self) -> int:
        """The id of padding. Any id would do, because a row holds the lengths of its documents."""
        ids = (self.identity.pad_id, self.identity.eos_id)
        return next((token for token in ids if token is not None), 0)
