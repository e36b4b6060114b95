"""A finished dataset as a source: the shards that its manifest names, and nothing else in its folder.

Origins, quarantine and notes are not records. Sizes are compared with the manifest, so that a truncated or missing
shard is found before the run; `gristmill verify` also reads the shards.

Each row of a token dataset that is not packed is read as a document again. It has its ids and, if it is a chat, its
loss mask; the text and all other columns are gone.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.media import SAMPLES, find_member
from gristmill.core.records import INPUT_IDS, KINDS, LOSS_MASK, ORIGIN, ORIGIN_TYPE, WEIGHTS
from gristmill.readers.cells import build_batch
from gristmill.readers.formats import FolderFiles
from gristmill.readers.read import Read
from gristmill.shards.canonical import make_damage_error
from gristmill.shards.manifest_file import SnapshotFile, TokenizerSnapshot, load_manifest, parse_manifest
from gristmill.shards.stored_files import MANIFEST, StoredFile
from gristmill.shards.token_rows import (
    CHATS,
    LENGTHS,
    ORIGINS,
    ROW_DATASETS,
    TOKENS,
    decode_kinds,
    find_schema_problem,
    find_token_columns,
    has_image_references,
    has_kinds,
    has_weights,
    shard_schema,
)
from gristmill.storage.files import compute_file_checksum, open_input
from gristmill.storage.urls import find_protocol, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gristmill.core.records import QuarantinedRecord, SourceFile
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.paths import ListedFile


_BEGINNING = re.compile(rb'\s*\{\s*"format_version"\s*:\s*\d+\s*,\s*"kind"\s*:')
_BEGINNING_BYTES = 200
_NAME_ON_STORE = re.compile(r"/shard-[0-9a-f]+-\d{8}-[0-9a-f]{8}-\d+(\.[^/]+)\Z")
_READABLE_KINDS = ("documents", SAMPLES, *ROW_DATASETS)


@dataclass(frozen=True, slots=True)
class _ListedDataset:
    """A finished dataset in a listing of files."""

    folder: str
    """The path or URL of its folder."""
    relative: str
    """The path of its folder below the source's root."""
    manifest: Manifest
    listed: Mapping[str, ListedFile]
    """All files of the listing, by relative path."""

    def file(self, stored_file: StoredFile, noun: str) -> ListedFile:
        """Return a file that the manifest names; raises if it is missing or has another size."""
        if find_protocol(self.folder) is None:
            stored_file.below(self.folder)
        file = self.listed.get(posixpath.join(self.relative, stored_file.path))
        if file is None or file.num_bytes != stored_file.bytes:
            size = f"has {file.num_bytes} bytes, but {stored_file.bytes} were written" if file else "is missing"
            raise self.damage_error(f"{noun} {stored_file.path} {size}")
        return file

    def damage_error(self, problem: str) -> DamagedDatasetError:
        return DamagedDatasetError(
            f"{self.folder}: {problem}",
            help=f"run gristmill verify {self.folder}; then restore the files, or run its recipe with --update",
        )


def refuse_unfinished(patterns: Iterable[str], base: str | None) -> None:
    """Refuse a folder in which a run is not finished: its files are not complete."""
    for pattern in patterns:
        if find_protocol(pattern) is None:
            folder = Path(base or "", local_path(pattern)).expanduser()
            if folder.is_dir() and any(folder.glob(".gristmill*")):
                load_manifest(folder)


def find_folder_format(files: Sequence[ListedFile]) -> str | None:
    """Return `gristmill` if a manifest of Gristmill is among the files, or `samples` if all tell of samples in tars.

    The beginning of a manifest is checked: others use the file name too.
    """
    if not _find_manifests(files):
        return None
    manifests = [dataset.manifest for dataset in _list_datasets(files)]
    has_members = all(
        manifest.format == "webdataset" and any(find_member(field) for field in manifest.schema.to_arrow())
        for manifest in manifests
    )
    return "samples" if has_members else "gristmill"


def arrange_folder(files: Sequence[ListedFile], where: str) -> FolderFiles:  # noqa: ARG001  (as for all folders)
    """Find the shards of all datasets in a listing, by split."""
    shards: dict[str, list[ListedFile]] = {}
    for dataset in _list_datasets(files):
        for split, sources in dataset.manifest.splits.items():
            for source, source_shards in sources.items():
                for number, shard in enumerate(source_shards):
                    file = dataset.file(shard, "shard")
                    if match := _NAME_ON_STORE.search(shard.path):
                        # A name on a store differs from run to run, and a record's identity depends on its file's.
                        name = f"{split}/{source}/shard-{number:05d}{match[1]}"
                        file = replace(file, relative=posixpath.join(dataset.relative, name))
                    shards.setdefault(split, []).append(file)
    return FolderFiles(shards)


def find_datasets_tokenizer(listed_files: Sequence[ListedFile]) -> TokenizerSnapshot | None:
    """Return the tokenizer of a listing of token datasets; None if they hold documents."""
    first, *others = _list_datasets(listed_files)
    identity = first.manifest.tokenizer
    if not first.manifest.holds_rows:
        return None
    if identity is None:
        raise first.damage_error("its manifest names no tokenizer")
    for other in others:
        if other.manifest.tokenizer is None or other.manifest.tokenizer.content != identity.content:
            raise UsageError(
                f"{first.folder} and {other.folder} have different tokenizers: their ids cannot be mixed",
                help="tokenize the documents of one of them again, with the tokenizer of the other",
            )
    files = {}
    for stored_file in identity.files:
        path = first.file(stored_file, "file").path
        if compute_file_checksum(path) != stored_file.xxh3:
            raise first.damage_error(f"file {stored_file.path} is not what was written")
        files[posixpath.basename(stored_file.path)] = SnapshotFile(path, stored_file.xxh3)
    return TokenizerSnapshot(msgspec.structs.replace(identity, files=[]), files)


def _list_datasets(files: Sequence[ListedFile]) -> list[_ListedDataset]:
    manifests = _find_manifests(files)
    if not manifests:
        raise UsageError(
            f"no {MANIFEST} of Gristmill among {len(files)} files",
            help="name the output folder of a finished run itself, without a pattern",
        )
    _refuse_other_files(files, manifests)
    by_relative = {file.relative: file for file in files}
    datasets = []
    for file in manifests:
        with open_input(file.path) as stream:
            manifest = parse_manifest(stream.read(), file.path)
        folder, relative = posixpath.dirname(file.path), posixpath.dirname(file.relative)
        datasets.append(_ListedDataset(folder, relative, manifest, by_relative))
    _check_kinds(datasets)
    return datasets


def _find_manifests(files: Sequence[ListedFile]) -> list[ListedFile]:
    named = [file for file in files if posixpath.basename(file.relative) == MANIFEST]
    return [file for file in named if _BEGINNING.match(_read_beginning(file))]


def _read_beginning(file: ListedFile) -> bytes:
    with open_input(file.path) as stream:
        return stream.read(_BEGINNING_BYTES)


def _refuse_other_files(files: Sequence[ListedFile], manifests: Sequence[ListedFile]) -> None:
    folders = tuple(file.relative.removesuffix(MANIFEST) for file in manifests)
    for file in files:
        if not file.relative.startswith(folders):
            raise UsageError(
                f"one source holds a dataset ({manifests[0].path}) and a file that is not part of it ({file.path})",
                help="make them two sources",
            )


def _check_kinds(datasets: Sequence[_ListedDataset]) -> None:
    first = datasets[0]
    for dataset in datasets:
        manifest = dataset.manifest
        if manifest.kind not in _READABLE_KINDS:
            raise UsageError(
                f"{dataset.folder} is a dataset of {manifest.kind}, which cannot be read as a source yet",
                help=f"read a dataset of {' or '.join(_READABLE_KINDS)}",
            )
        if manifest.row_length is not None:
            raise UsageError(
                f"{dataset.folder} is packed already, into rows of {manifest.row_length} tokens: its documents are cut "
                "and mixed",
                help="read a dataset of tokens that was made without the step pack, or the documents",
            )
        if manifest.kind != first.manifest.kind:
            raise UsageError(
                f"one source holds {first.manifest.kind} ({first.folder}) and {manifest.kind} ({dataset.folder})",
                help="make them two sources",
            )


_TEXT_KEYS = ("text", "columns", "max_record_bytes")


def refuse_text_keys(read: Read) -> None:
    """Refuse keys of a source that have no meaning without text."""
    untouched = Read(read=read.read)
    for key in _TEXT_KEYS:
        if getattr(read, key) != getattr(untouched, key):
            raise UsageError(
                f"{key}: a dataset of tokens has only token ids and splits, no text and no other columns",
                help=f"leave {key} out, or read the documents that the tokens were made of",
            )


def holds_token_rows(stored_schema: pa.Schema) -> bool:
    """Whether a shard with these columns holds rows of tokens."""
    return {INPUT_IDS, LENGTHS, ORIGINS} <= set(stored_schema.names)


def documents_schema(stored_schema: pa.Schema, path: str) -> pa.Schema:
    """Return the columns of the documents in a shard of rows."""
    if has_image_references(stored_schema):
        raise UsageError(f"{path} holds chats with images, which cannot be read again", help="read the chats")
    kind = CHATS if LOSS_MASK in stored_schema.names else TOKENS
    if find_schema_problem(kind, stored_schema) is not None or not stored_schema.equals(
        shard_schema(stored_schema, None)
    ):
        raise UsageError(
            f"{path} holds {', '.join(f'{field.name} {field.type}' for field in stored_schema)}: only rows of one "
            "document each, with its ids alone, can be read again",
            help="read the documents that the tokens were made of",
        )
    names = [name for name in (INPUT_IDS, LOSS_MASK) if name in stored_schema.names]
    fields = [stored_schema.field(name) for name in (*names, *find_token_columns(stored_schema))]
    if has_kinds(stored_schema):
        fields.append(pa.field(KINDS, pa.list_(pa.uint8())))
    if has_weights(stored_schema):
        fields.append(stored_schema.field(WEIGHTS))
    return pa.schema([(ORIGIN, ORIGIN_TYPE), *fields])


class TokenRowMapper:
    """A mapper of rows of one shard to batches of the planned schema; the counterpart of `ColumnMapper`."""

    def __init__(self, file: SourceFile, stored_schema: pa.Schema, planned: pa.Schema) -> None:
        self._file = file
        self._planned = planned
        own = documents_schema(stored_schema, file.path)
        self.top_level = [name for name in planned.names if name != ORIGIN]
        for name in self.top_level:
            if name not in own.names or own.field(name).type != planned.field(name).type:
                raise UsageError(
                    f'{file.path} holds {", ".join(map(str, own))}, but other shards hold "{name}" as '
                    f"{planned.field(name).type}",
                    help="read datasets of one tokenizer only",
                )

    def batch(
        self, rows: pa.RecordBatch, first_row: int
    ) -> tuple[pa.RecordBatch, list[QuarantinedRecord], Counter[str]]:
        columns = {name: rows.column(name) for name in self.top_level}
        if any(column.null_count or column.values.null_count for column in columns.values()):
            raise make_damage_error(self._file.path, "holds nulls")
        if KINDS in columns:
            columns[KINDS] = decode_kinds(columns[KINDS])
        positions = np.arange(first_row, first_row + len(rows))
        return build_batch(self._planned, self._file.id, positions, columns), [], Counter()
