"""The manifest: what a dataset holds, where it came from, and the proof of both.

It is written last; a folder without it is not a dataset. `dataset_hash` names the data: it is equal for equal
records in equal order, whenever and wherever they were made. `checksum` guards the manifest itself, so that an edited
count or account is noticed too. Cost: about 250 bytes for each shard and each input file.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import msgspec
import pyarrow as pa
import xxhash

from gristmill.core.books import Account  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.token_rows import KINDS, find_schema_problem
from gristmill.storage.local_copies import copy_locally
from gristmill.storage.locations import list_names, parse_location
from gristmill.storage.stored_paths import Count, StoredName, StoredPath, decode_stored, path_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.locations import Location

FORMAT_VERSION = 3
"""Raised with every change of the manifest's keys; no other version is read."""
MANIFEST = "manifest.json"
MAX_LISTED_SHARDS = 10_000
"""The number of shards up to which the manifest itself lists them."""
_JSON_FORMATS = ("jsonl", "webdataset")
FORMATS = ("arrow", "parquet", *_JSON_FORMATS)
"""The formats of shards."""

_REBUILD = "build the dataset again"

FileKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
"""The id of an input file, as `file_key` writes it."""
RowLength = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
MIXED = "mixed"
"""The lane in which the records of several sources are interleaved."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the dataset, with its size and checksum."""

    path: StoredPath
    """The path relative to the dataset's folder."""
    bytes: Count
    xxh3: str

    def copy_below(self, folder: Location) -> Path:
        """Return the file's path on disk: the file itself, or a copy of one on a store."""
        return copy_locally(self.below(folder), self.bytes, self.xxh3)

    @overload
    def below(self, folder: str | Path) -> Path: ...
    @overload
    def below(self, folder: Location) -> Location: ...
    def below(self, folder: str | Location) -> Location:
        """Return the file's path on disk or on a store, for a dataset in this folder."""
        return path_below(Path(folder) if isinstance(folder, str) else folder, self.path)


class Shard(StoredFile, frozen=True, kw_only=True):
    """A file of records of one split and source."""

    rows: Count
    tokens: Count | None = None
    """The number of tokens in rows of tokens, without padding."""
    trained_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    """The number of trained tokens in rows of chats."""
    tasks: list[str] = []
    """Fingerprints of the tasks that made it."""
    origins: StoredFile | None = None
    """The file of its records' origins, if the format cannot hold them."""


class LaneIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The index of the shards of one split and source (`block_index`)."""

    blocks: StoredFile
    """Where each block is."""
    costs: StoredFile | None = None
    """The attention cost of each row, where rows are tokens."""

    def files(self) -> list[StoredFile]:
        """List the files that it consists of."""
        return [self.blocks, *([self.costs] if self.costs is not None else [])]


class MixedShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one source in a lane of several sources."""

    rows: Count
    tokens: Count | None = None
    trained_tokens: Count | msgspec.UnsetType = msgspec.UNSET


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The columns: in words for people and for the hash, and exactly, as an Arrow schema message in base64."""

    columns: dict[str, str]
    arrow: str

    @classmethod
    def of(cls, schema: pa.Schema) -> Schema:
        arrow = base64.b64encode(schema.serialize()).decode()
        return cls(columns={field.name: str(field.type) for field in schema}, arrow=arrow)

    def to_arrow(self) -> pa.Schema:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedDatasetError(f"the schema in the {MANIFEST} cannot be read: {error}", help=_REBUILD) from error
        if [(field.name, str(field.type)) for field in schema] != list(self.columns.items()):
            raise DamagedDatasetError(f"the {MANIFEST} names other columns than its schema has", help=_REBUILD)
        return schema


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """An input file as it was when it was read."""

    source: str
    path: str
    relative: str
    bytes: int
    version: str


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """The quarantined records of a dataset: their number by source and reason, and the files that hold them."""

    counts: dict[str, dict[str, Count]] = {}
    """By source and reason."""
    files: list[StoredFile] = []
    """Files of JSON lines, one line for each record."""


class ScoreFile(StoredFile, frozen=True, kw_only=True):
    """The scores that the filters of one stage measured in the documents of one source (`shards/score_file.py`)."""

    source: str
    stage: int
    """The number of the stage, from 1."""
    rows: Count
    histograms: dict[str, list[tuple[int, Count]]] = {}
    """For each score the number of documents in each bin of `BIN_EDGES` that has some."""


class DuplicateCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was kept for all its duplicates."""

    size: int
    """The number of documents, with the one that was kept."""
    source: str
    path: str
    position: int
    samples: list[str]
    """The beginning of its text, and of some that were removed."""


class Deduplicated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `deduplicate` step."""

    file: StoredFile
    """A Parquet table: each removed document, the one that was kept for it, and how similar they are."""
    rows: int
    verify: str
    """How near duplicates were verified: by `text`, or by `signature`, which only estimates their similarity."""
    loss: dict[str, dict[str, int]]
    """By source: documents `in`, `duplicate` and `near_duplicate`."""
    cluster_sizes: dict[str, int]
    """The number of clusters with 2, 3-4, 5-8, … documents."""
    largest: list[DuplicateCluster]
    counts: dict[str, int]
    """Amounts of work: pairs compared, pairs whose texts were needed, documents that shared a band."""
    against: dict[FileKey, InputFile] = {}
    """The input files of `against`, as in `Manifest.files`."""
    against_read: dict[str, object] = {}
    """How they were read, as the keys of a source."""


class BenchmarkCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `decontaminate` for one benchmark."""

    items: Count
    found: Count
    """The number of items that were found in any source."""
    unchecked: dict[str, list[str]] = {}
    """The items that were not looked for, by reason: `too_short_to_check`, `only_shared_words`."""


class Decontaminated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `decontaminate` step."""

    action: str
    benchmarks: dict[str, BenchmarkCheck]
    found: dict[str, dict[str, dict[str, int]]]
    """By benchmark and source: `documents` that hold an item, and `items` that were found."""
    common_ngrams: dict[str, int]
    """By source: the n-grams of items that are common in it, and were ignored."""


class TokenizerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer that made the token ids."""

    name: str
    """The name in the recipe."""
    content: str
    """The xxh3 hash of everything that decides the ids."""
    files: list[StoredFile]
    """`tokenizer.json` and the files that belong to it, all in one folder of the dataset."""
    vocab_size: Count
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    engine: str
    engine_version: str
    why: str
    """Why this engine was chosen."""
    parity: dict[str, int]
    """How much text was encoded by the engine and the reference for comparison, before the run."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `manifest.json`: what a dataset holds, and how it was made."""

    format_version: int = FORMAT_VERSION
    kind: str
    """What the rows are: `documents`, `tokens`, or `chats`, which are tokens with a loss mask."""
    format: str
    """The format of the shards: `arrow`, `parquet`, `jsonl` or `webdataset`."""
    dataset_hash: str = ""
    fingerprint: str = ""
    """A hash of everything that decided the dataset; empty where the code of a function could not be known."""
    checksum: str = ""
    """The xxh3 hash of the manifest with this field empty."""
    environment_dependent: bool = False
    """Whether records were quarantined as `worker_died`, `timeout` or `out_of_memory`. Another run may keep them."""
    schema: Schema
    splits: dict[StoredName, dict[StoredName, list[Shard]]]
    """Split -> source -> shards, in the order of the records; or -> `mixed`, where the sources are interleaved. In the
    file it is empty where there is a `shard_list`."""
    shard_list: StoredFile | msgspec.UnsetType = msgspec.UNSET
    """The file that lists the shards, where there are very many (`shard_list`)."""
    index: dict[StoredName, dict[StoredName, LaneIndex]] | msgspec.UnsetType = msgspec.UNSET
    """Split -> source -> where the blocks of its shards are; unset in datasets of before there was an index."""
    mixed: dict[StoredName, dict[StoredName, MixedShare]] = {}
    """Split -> source -> its share of the lane `mixed`. Origins tell which record is from which source."""
    books: dict[str, list[Account]] = {}
    """Source -> the accounts of its steps, in order."""
    quarantine: Quarantine = Quarantine()
    dropped: list[StoredFile] = []
    """Records that steps have dropped, where the recipe keeps them: JSON lines, one file for each step and reason."""
    scores: list[ScoreFile] = []
    """What filters have measured in all documents that reached them; not part of `dataset_hash`."""
    recipe: dict[str, object] = {}
    versions: dict[str, str] = {}
    """Versions of the libraries that decided the dataset; for packages with plugins also a hash of their files."""
    plugins: dict[str, str] = {}
    """`step NAME`, `barrier NAME` or `reader NAME` -> the package that provides it, with its version."""
    row_length: RowLength | None = None
    """The number of tokens in each row of a packed dataset."""
    tokenizer: TokenizerIdentity | None = None
    mixture: dict[str, float] | None = None
    """The weights of the sources in training, if the recipe names them; None: by their numbers of rows."""
    deduplicated: list[Deduplicated] = []
    """One for each `deduplicate` step, in the order in which they were run."""
    decontaminated: list[Decontaminated] = []
    """One for each `decontaminate` step, in the order in which they were run."""
    files: dict[FileKey, InputFile] = {}
    """`file_key(id)` -> the input file that records with this id in their origin are from."""

    def shards(self) -> Iterator[tuple[str, str, Shard]]:
        """Iterate over (split, source, shard), in order."""
        for split, sources in self.splits.items():
            for source, shards in sources.items():
                for shard in shards:
                    yield split, source, shard

    def shard_schema(self) -> pa.Schema | None:
        """Return the columns that every shard has; None where shards hold JSON.

        Raises:
            DamagedDatasetError: The manifest names an unknown format, or columns that its kind cannot have.
        """
        schema = self.schema.to_arrow()
        if self.format not in FORMATS:
            raise DamagedDatasetError(f"the {MANIFEST} names an unknown format {self.format!r}", help=_REBUILD)
        if not self.holds_rows and self.format in _JSON_FORMATS:
            return None
        if problem := find_schema_problem(self.kind, schema):
            raise DamagedDatasetError(f"the {MANIFEST} cannot be right: {problem}", help=_REBUILD)
        return schema

    def amounts(self) -> dict[str, MixedShare]:
        """Add up what all splits hold of each source, with the lane `mixed`."""
        amounts: dict[str, list[Shard | MixedShare]] = {}
        for split, source, shard in self.shards():
            if not self.is_mixed(split, source):
                amounts.setdefault(source, []).append(shard)
        for shares in self.mixed.values():
            for source, share in shares.items():
                amounts.setdefault(source, []).append(share)
        return {
            source: MixedShare(
                rows=sum(amount.rows for amount in source_amounts),
                tokens=sum(amount.tokens or 0 for amount in source_amounts) or None,
                trained_tokens=sum(amount.trained_tokens or 0 for amount in source_amounts),
            )
            for source, source_amounts in amounts.items()
        }

    def is_mixed(self, split: str, source: str) -> bool:
        """Tell whether this is a lane in which several sources are interleaved."""
        return source == MIXED and split in self.mixed

    @property
    def holds_rows(self) -> bool:
        """Whether the dataset holds rows of tokens, with a loss mask or without."""
        return self.kind in KINDS

    def tokenizer_folder(self, folder: str | Location) -> Path:
        """Return the folder of the tokenizer, in a dataset of this folder; of a store, a copy of it."""
        if self.tokenizer is None or not self.tokenizer.files:
            raise UsageError("the dataset has no tokenizer: it holds no tokens")
        root = parse_location(folder)
        group = f"tokenizer-{self.tokenizer.content}"
        first, *_ = [copy_locally(file.below(root), file.bytes, file.xxh3, group) for file in self.tokenizer.files]
        return first.parent

    def stored_files(self) -> Iterator[StoredFile]:
        """List every file that the manifest names: shards, origins, index, removed records, the tokenizer."""
        for _, _, shard in self.shards():
            yield shard
            if shard.origins is not None:
                yield shard.origins
        for sources in (self.index or {}).values():
            for lane in sources.values():
                yield from lane.files()
        if self.shard_list:
            yield self.shard_list
        yield from self.quarantine.files
        yield from (step.file for step in self.deduplicated)
        yield from self.dropped
        yield from self.scores
        if self.tokenizer is not None:
            yield from self.tokenizer.files

    def seal(self) -> Manifest:
        """Return the manifest with its hash and checksum filled in. Call it last."""
        hashed = msgspec.structs.replace(self, dataset_hash=dataset_hash(self), checksum="")
        return msgspec.structs.replace(hashed, checksum=_compute_checksum(hashed))

    @property
    def is_sealed(self) -> bool:
        """Whether nothing has changed since `seal`."""
        return self.checksum == _compute_checksum(msgspec.structs.replace(self, checksum=""))


def file_key(id: int) -> str:
    """Format the id of an input file for `Manifest.files`: JSON readers round numbers of 64 bits."""
    return f"{id:016x}"


def dataset_hash(manifest: Manifest) -> str:
    """Hash the splits, sources, columns and shards' content in order; times, paths and versions do not count."""
    splits = [
        [split, [[source, [shard.xxh3 for shard in shards]] for source, shards in sources.items()]]
        for split, sources in manifest.splits.items()
    ]
    tokenizer = manifest.tokenizer.content if manifest.tokenizer is not None else None
    content = [manifest.kind, manifest.format, list(manifest.schema.columns.items()), tokenizer, splits]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


def _compute_checksum(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(manifest))


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
        raise DamagedDatasetError(f"{folder}/{file.path} is damaged: {error}", help=_REBUILD) from error
    return splits


def _read_format_version(path: str, data: bytes) -> int:
    class Head(msgspec.Struct):
        format_version: int

    try:
        return msgspec.json.decode(data, type=Head).format_version
    except msgspec.ValidationError:
        raise UsageError(f"{path} was not written by Gristmill", help="name the output folder of a run") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedDatasetError(f"{path} is damaged: {error}", help=_REBUILD) from error


def _make_not_a_dataset_error(folder: Location) -> UsageError:
    if not folder.exists():
        return UsageError(f"there is no folder {folder}", help="name the output folder of a finished run")
    if not folder.is_dir():
        return UsageError(f"{folder} is a file, not the folder of a dataset", help="name the output folder of a run")
    if any(name.startswith(".gristmill") for name in list_names(folder)):
        return UsageError(
            f"{folder} holds an unfinished run: it has no {MANIFEST} yet",
            help=f"gristmill status {folder} shows whether it is going on; if not, the same recipe resumes it",
        )
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return UsageError(
            f"{folder} is a Hugging Face dataset, not a Gristmill dataset", help='use it as a source: {read: "…"}'
        )
    return UsageError(f"{folder} is not a dataset: it has no {MANIFEST}", help="name the output folder of a run")
