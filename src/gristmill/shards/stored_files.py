"""What a manifest says about files: those of the dataset, those that it was made from, and their columns."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import msgspec
import pyarrow as pa
import xxhash

from gristmill.core.errors import DamagedDatasetError, DamagedWorkError, SourceChangedError
from gristmill.storage.files import compute_file_checksum, map_file
from gristmill.storage.locations import Count, StoredPath, is_remote, measure_file, path_below
from gristmill.storage.user_cache import copy_locally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from typing_extensions import Buffer

    from gristmill.storage.locations import Location


MANIFEST = "manifest.json"
REBUILD = "build the dataset again"
_PIECE_BYTES = 2**20
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

    def read_intact(self, folder: Location) -> pa.Buffer:
        """Map or fetch the whole file, for a run that has written it before.

        Raises:
            DamagedWorkError: It is not what was written.
        """
        try:
            content = map_file(self.below(folder))
        except FileNotFoundError:
            raise self.make_work_error(folder, "is missing") from None
        self.check_content(folder, content)
        return content

    def check_content(self, folder: Location, content: pa.Buffer) -> None:
        """Raise `DamagedWorkError` if this is not what was written to the file."""
        self._check(folder, content.size, xxhash.xxh3_64_hexdigest(content))

    def is_intact(self, path: Location) -> bool:
        """Tell whether this file is what was written. All of it is read, in constant memory."""
        return measure_file(path) == self.bytes and compute_file_checksum(path) == self.xxh3

    @contextmanager
    def open_intact(self, folder: Location) -> Iterator[pa.NativeFile]:
        """Open the file to read it in order, as `read_intact` does.

        Of a store it is read once, so that damage is known at the end. What was read counts only if no error is raised.
        """
        path = self.below(folder)
        if not is_remote(path):
            with pa.BufferReader(self.read_intact(folder)) as mapped:
                yield mapped
            return
        with path.open("rb") as remote:
            stream = _DigestedStream(remote)
            try:
                yield pa.PythonFile(stream, mode="r")
            except Exception:  # what cannot be decoded is the effect of damage, which is then the one to tell
                self._check_stream(folder, stream)
                raise
            self._check_stream(folder, stream)

    def make_work_error(self, folder: Location, problem: str) -> DamagedWorkError:
        """Make the error for intermediate data that is not what was written."""
        return DamagedWorkError(
            f"{self.below(folder)}, intermediate data of this run, {problem}",
            help="check the disk, memory or store that holds it; the same command rebuilds what is damaged",
            file=self,
        )

    def _check_stream(self, folder: Location, stream: _DigestedStream) -> None:
        try:
            while stream.read(_PIECE_BYTES):
                pass
        except FileNotFoundError:
            raise self.make_work_error(folder, "is missing") from None
        except SourceChangedError:
            raise self.make_work_error(folder, "was changed while it was read") from None
        self._check(folder, stream.num_bytes, stream.digest.hexdigest())

    def _check(self, folder: Location, num_bytes: int, checksum: str) -> None:
        if num_bytes != self.bytes:
            raise self.make_work_error(folder, f"has {num_bytes:,} bytes, not {self.bytes:,} as when it was written")
        if checksum != self.xxh3:
            raise self.make_work_error(folder, "has another checksum than when it was written")


class StoredRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a file that a run has written."""

    file: StoredFile
    start: Count = 0
    num_bytes: Count
    checksum: int
    """The xxh3 of these bytes."""

    def read(self, folder: Location) -> pa.Buffer:
        """Map or fetch these bytes.

        Raises:
            DamagedWorkError: They are not what was written.
        """
        try:
            content = map_file(self.file.below(folder), self.start, self.num_bytes)
        except FileNotFoundError:
            raise self.file.make_work_error(folder, "is missing") from None
        self.check_content(folder, content)
        return content

    def check_content(self, folder: Location, content: Buffer) -> None:
        """Raise `DamagedWorkError` if these are not the bytes that were written."""
        if xxhash.xxh3_64_intdigest(content) != self.checksum:
            stop = self.start + self.num_bytes
            raise self.file.make_work_error(folder, f"is damaged between the bytes {self.start:,} and {stop:,}")


class _DigestedStream:
    """A file that is read in order, and digested on the way; with as much of a file's interface as Arrow uses."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = xxhash.xxh3_64()
        self.num_bytes = 0

    def read(self, num_bytes: int) -> bytes:
        data = self._stream.read(num_bytes)
        self.digest.update(data)
        self.num_bytes += len(data)
        return data


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
