"""What a manifest says about files: those of the dataset, those that it was made from, and their columns."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import msgspec
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError
from gristmill.storage.stored_paths import Count, StoredPath, path_below
from gristmill.storage.user_cache.local_copies import copy_locally

if TYPE_CHECKING:
    from gristmill.storage.locations import Location

MANIFEST = "manifest.json"
REBUILD = "build the dataset again"
FileKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
"""The id of an input file, as `file_key` writes it."""


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
            raise DamagedDatasetError(f"the schema in the {MANIFEST} cannot be read: {error}", help=REBUILD) from error
        if [(field.name, str(field.type)) for field in schema] != list(self.columns.items()):
            raise DamagedDatasetError(f"the {MANIFEST} names other columns than its schema has", help=REBUILD)
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


def file_key(id: int) -> str:
    """Format the id of an input file for `Manifest.files`: JSON readers round numbers of 64 bits."""
    return f"{id:016x}"
