"""The manifest: what a dataset holds, where it came from, and the proof of both.

It is written last; a folder without it is not a dataset. `dataset_hash` names the data: equal for equal records in
equal order, whenever and wherever they were made. `checksum` guards the manifest itself, so that an edited count or
account is noticed too. Cost: about 250 bytes a shard and an input file.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import pyarrow as pa
import xxhash

from gristmill.core.books import Account  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.token_rows import KINDS, find_schema_problem
from gristmill.storage.stored_paths import Count, StoredName, StoredPath, decode_stored, path_below

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT_VERSION = 2
"""Raised with every change of the manifest's keys; no other version is read."""
MANIFEST = "manifest.json"
_JSON_FORMATS = ("jsonl", "webdataset")
FORMATS = ("arrow", "parquet", *_JSON_FORMATS)
"""Of shards."""

_AGAIN = "make the dataset again"

FileKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
"""See `file_key`."""
RowLength = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
MIXED = "mixed"
"""The lane in which the records of several sources are interleaved."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the dataset."""

    path: StoredPath
    """Relative to the dataset's folder."""
    bytes: Count
    xxh3: str

    def below(self, folder: str | Path) -> Path:
        """Where it is, in a dataset of this folder."""
        return path_below(folder, self.path)


class Shard(StoredFile, frozen=True, kw_only=True):
    """A file of records."""

    rows: Count
    tokens: Count | None = None
    """In rows of tokens, without padding."""
    trained_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    """In rows of chats."""
    tasks: list[str] = []
    """Fingerprints of the tasks that made it."""
    origins: StoredFile | None = None
    """Where its records' origins are, if the format cannot hold them."""


class MixedShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane of several sources holds of one of them."""

    rows: Count
    tokens: Count | None = None
    trained_tokens: Count | msgspec.UnsetType = msgspec.UNSET


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The columns: as words for people and the hash, and exactly, as an Arrow schema message in base64."""

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
            raise DamagedDatasetError(f"the schema in the {MANIFEST} cannot be read: {error}", help=_AGAIN) from error
        if [(field.name, str(field.type)) for field in schema] != list(self.columns.items()):
            raise DamagedDatasetError(f"the {MANIFEST} names other columns than its schema has", help=_AGAIN)
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
    """JSON lines, one a record."""


class DuplicateCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A document that stays for others."""

    size: int
    """With itself."""
    source: str
    path: str
    position: int
    samples: list[str]
    """The beginning of its text, and of some of those that went."""


class Deduplicated(msgspec.Struct, frozen=True, kw_only=True):
    """What one `deduplicate` step has done."""

    file: StoredFile
    """Parquet: each document that went, the one that stays for it, how alike they are."""
    rows: int
    verify: str
    """How near duplicates were verified: by `text`, or by `signature`: then their similarities are estimates."""
    loss: dict[str, dict[str, int]]
    """By source: documents `in`, `duplicate` and `near_duplicate`."""
    cluster_sizes: dict[str, int]
    """How many clusters have 2, 3-4, 5-8, … documents."""
    largest: list[DuplicateCluster]
    counts: dict[str, int]
    """Of the work: pairs compared, pairs whose texts were needed, documents that shared a band."""
    against: dict[FileKey, InputFile] = {}
    """The files of `against`, as in `Manifest.files`."""
    against_read: dict[str, object] = {}
    """How they were read: the keys of a source."""


class TokenizerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What made the token ids."""

    name: str
    """As the recipe has it."""
    content: str
    """xxh3 of all that shapes ids."""
    files: list[StoredFile]
    """`tokenizer.json` and what belongs to it, all in one folder of the dataset."""
    vocab_size: Count
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    engine: str
    engine_version: str
    why: str
    """Why this engine."""
    parity: dict[str, int]
    """On how much text the engine was compared with the reference before the run; the books say how much in it."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `manifest.json`: what a dataset holds, and how it was made."""

    format_version: int = FORMAT_VERSION
    kind: str
    """documents, tokens, or chats: tokens with a loss mask."""
    format: str
    """Of the shards: arrow, parquet, jsonl or webdataset."""
    dataset_hash: str = ""
    fingerprint: str = ""
    """Of all that shaped the dataset; empty where the code of a function could not be known."""
    checksum: str = ""
    """xxh3 of the manifest with this field empty."""
    environment_dependent: bool = False
    """Whether the machine had a say (`worker_died`, `timeout`, `out_of_memory`): another run may keep those records."""
    schema: Schema
    splits: dict[StoredName, dict[StoredName, list[Shard]]]
    """Split -> source -> shards, in the order of the records; or -> `mixed`, where the sources are interleaved."""
    mixed: dict[StoredName, dict[StoredName, MixedShare]] = {}
    """Split -> source -> its share of the lane `mixed`; which record is whose is said by the origins."""
    books: dict[str, list[Account]] = {}
    """Source -> the accounts of its steps, in order."""
    quarantine: Quarantine = Quarantine()
    dropped: list[StoredFile] = []
    """Records that steps have dropped, where the recipe keeps them: JSON lines, a file a step and reason."""
    recipe: dict[str, object] = {}
    versions: dict[str, str] = {}
    """Versions of what shaped the dataset; of packages with plugins also a hash of their files."""
    plugins: dict[str, str] = {}
    """`step NAME`, `barrier NAME` or `reader NAME` -> the package that provides it, with its version."""
    row_length: RowLength | None = None
    """Tokens in each row of a packed dataset."""
    tokenizer: TokenizerIdentity | None = None
    mixture: dict[str, float] | None = None
    """Weights of the sources in training, where the recipe names them; None: as many rows as each has."""
    deduplicated: list[Deduplicated] = []
    """One for each `deduplicate` step, in the order in which they were run."""
    files: dict[FileKey, InputFile] = {}
    """`file_key(id)` -> the input file that the records' origins mean."""

    def shards(self) -> Iterator[tuple[str, str, Shard]]:
        """(split, source, shard), in order."""
        for split, sources in self.splits.items():
            for source, shards in sources.items():
                for shard in shards:
                    yield split, source, shard

    def shard_schema(self) -> pa.Schema | None:
        """The columns that every shard has; None where shards hold JSON.

        Raises:
            DamagedDatasetError: There are no shards of this format, or they cannot have these columns.
        """
        schema = self.schema.to_arrow()
        if self.format not in FORMATS:
            raise DamagedDatasetError(f"the {MANIFEST} names a format {self.format!r}, which there is not", help=_AGAIN)
        if not self.holds_rows and self.format in _JSON_FORMATS:
            return None
        if problem := find_schema_problem(self.kind, schema):
            raise DamagedDatasetError(f"the {MANIFEST} cannot be right: {problem}", help=_AGAIN)
        return schema

    def amounts(self) -> dict[str, MixedShare]:
        """Source -> what all splits hold of it, the lane `mixed` included."""
        found: dict[str, list[Shard | MixedShare]] = {}
        for split, source, shard in self.shards():
            if not self.is_mixed(split, source):
                found.setdefault(source, []).append(shard)
        for shares in self.mixed.values():
            for source, share in shares.items():
                found.setdefault(source, []).append(share)
        return {
            source: MixedShare(
                rows=sum(part.rows for part in parts),
                tokens=sum(part.tokens or 0 for part in parts) or None,
                trained_tokens=sum(part.trained_tokens or 0 for part in parts),
            )
            for source, parts in found.items()
        }

    def is_mixed(self, split: str, source: str) -> bool:
        """Whether this is a lane in which several sources are interleaved."""
        return source == MIXED and split in self.mixed

    @property
    def holds_rows(self) -> bool:
        """Whether it holds rows of tokens, with a loss mask or without."""
        return self.kind in KINDS

    def tokenizer_folder(self, folder: str | Path) -> Path:
        """Return the folder of the tokenizer, in a dataset of this folder."""
        if self.tokenizer is None or not self.tokenizer.files:
            raise UsageError("the dataset has no tokenizer: it holds no tokens")
        first, *_ = [file.below(folder) for file in self.tokenizer.files]
        return first.parent

    def stored_files(self) -> Iterator[StoredFile]:
        """List every file that the manifest names: shards, origins, quarantined and removed records, the tokenizer."""
        for _, _, shard in self.shards():
            yield shard
            if shard.origins is not None:
                yield shard.origins
        yield from self.quarantine.files
        yield from (step.file for step in self.deduplicated)
        yield from self.dropped
        if self.tokenizer is not None:
            yield from self.tokenizer.files

    def seal(self) -> Manifest:
        """Return the manifest with its hash and checksum filled in. Call it last."""
        hashed = msgspec.structs.replace(self, dataset_hash=dataset_hash(self), checksum="")
        return msgspec.structs.replace(hashed, checksum=_checksum(hashed))

    @property
    def is_sealed(self) -> bool:
        """Whether nothing was changed since `seal`."""
        return self.checksum == _checksum(msgspec.structs.replace(self, checksum=""))


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


def _checksum(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(manifest))


def dump_manifest(manifest: Manifest) -> Iterator[bytes]:
    """The file's content in pieces: JSON with the fields in the order of the struct, an input file a line.

    Of those there may be a hundred thousand; the whole text of them is never held.
    """
    body = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files={})), indent=2)
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


def load_manifest(folder: str | Path) -> Manifest:
    """The manifest of a dataset's folder, or an error that says what the folder is instead."""
    path = Path(folder) / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _not_a_dataset(Path(folder)) from None
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, path: str) -> Manifest:
    """A manifest from the content of its file."""
    version = _read_format_version(path, data)
    if version != FORMAT_VERSION:
        remedy = "upgrade Gristmill" if version > FORMAT_VERSION else "build the dataset again, in another folder"
        raise UsageError(
            f"{path} has format version {version}, and this Gristmill reads version {FORMAT_VERSION}: {remedy}"
        )
    return decode_stored(data, Manifest, path, help="make the dataset again, in another folder")


def _read_format_version(path: str, data: bytes) -> int:
    class Head(msgspec.Struct):
        format_version: int

    try:
        return msgspec.json.decode(data, type=Head).format_version
    except msgspec.ValidationError:
        raise UsageError(f"{path} was not written by Gristmill", help="name the output folder of a run") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedDatasetError(f"{path} is damaged: {error}", help=_AGAIN) from error


def _not_a_dataset(folder: Path) -> UsageError:
    if not folder.exists():
        return UsageError(f"there is no folder {folder}", help="name the output folder of a finished run")
    if not folder.is_dir():
        return UsageError(f"{folder} is a file, not the folder of a dataset", help="name the output folder of a run")
    if any(folder.glob(".gristmill*")):
        return UsageError(
            f"{folder} holds an unfinished run: it has no {MANIFEST} yet",
            help="run the same recipe again: it resumes where it stopped",
        )
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return UsageError(
            f"{folder} is a Hugging Face dataset, not one of Gristmill", help='use it as a source: {read: "…"}'
        )
    return UsageError(f"{folder} is not a dataset: it has no {MANIFEST}", help="name the output folder of a run")
