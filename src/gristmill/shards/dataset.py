"""A finished dataset, for reading: `open_dataset("out")`.

Memory: the manifest, an index of 8 bytes for each shard, and a few open shards. `formats.shard_format` lists what a row
costs in each format; Arrow is the one for random access.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gristmill.core.checks import check_choice
from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, ORIGIN
from gristmill.shards.canonical import ORIGINS_SCHEMA, make_damage_error
from gristmill.shards.formats.base import READ_ERRORS, ShardRecord, remove_origins
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.stored_files import Shard, StoredFile, file_key
from gristmill.shards.token_rows import LENGTHS, ORIGINS
from gristmill.shards.verify import Verification, verify
from gristmill.storage.locations import parse_location
from gristmill.storage.stores.credentials import name_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.shards.formats.base import ShardReader
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location
    from gristmill.text.tokenizers.byte_lengths import TextDecoder

_MAX_OPEN_SHARDS = 8


@dataclass(frozen=True, slots=True)
class Origin:
    """The input file and position of a record."""

    source: str
    path: str
    """The path of the input file."""
    position: int
    """The byte offset in the decompressed file, the row number or the member number, depending on the format."""
    part: int
    """The number of the record among those that were made from one input record."""


def open_dataset(path: str | Location) -> Dataset:
    """Open the output folder of a finished run, which may be on a store. Only the manifest is read.

    Shards of a store are copied to the user's cache folder when they are first used.
    """
    folder = parse_location(path)
    name_bucket(str(folder))
    return Dataset(folder, load_manifest(folder))


@contextmanager
def open_file(dataset: Dataset, file: StoredFile) -> Iterator[Path]:
    """Give the path of a file of a dataset, of the right size. An error of reading it names the file."""
    with dataset._name_damage(file):
        yield dataset._check_size(file)


class Dataset:
    """The records of a dataset, in the order of the manifest: split by split, source by source."""

    def __init__(self, folder: Location, manifest: Manifest, *, split: str | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self._split = split
        self._shards = [entry for entry in manifest.shards() if split in (None, entry[0])]
        self._ends = np.cumsum([shard.rows for _, _, shard in self._shards], dtype=np.int64)
        self._open: OrderedDict[str, ShardReader] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: SupportsIndex) -> ShardRecord:
        """Return a record by its number. Negative numbers count from the end."""
        shard, row = self._find(index)
        return remove_origins(self._read(shard, row))

    def __iter__(self) -> Iterator[ShardRecord]:
        for _, _, shard in self._shards:
            with self._name_damage(shard):
                num_rows = 0
                for record in self._reader(shard, self.manifest.format, self.manifest.kind).rows():
                    yield remove_origins(record)
                    num_rows += 1
                if num_rows != shard.rows:
                    raise EOFError(f"it holds {num_rows} records, not {shard.rows}")

    def __repr__(self) -> str:
        splits = ", ".join(f"{split}: {len(self.split(split))}" for split in self.splits)
        return f"Dataset({str(self.folder)!r}, {self.manifest.format}, rows {{{splits}}})"

    @property
    def splits(self) -> list[str]:
        return [self._split] if self._split is not None else list(self.manifest.splits)

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(source for split in self.splits for source in self.manifest.splits[split]))

    @property
    def schema(self) -> pa.Schema:
        """The columns that every record has. JSON records that are stored as they were read may have more fields."""
        return self.manifest.schema.to_arrow()

    def split(self, name: str) -> Dataset:
        """Return the records of one split."""
        check_choice("split", name, self.splits)
        return Dataset(self.folder, self.manifest, split=name)

    def origins(self, index: SupportsIndex) -> list[Origin]:
        """Return the origin of a record, or those of all documents in a row of tokens."""
        shard, row = self._find(index)
        if shard.origins is None:
            record = self._read(shard, row)
            origins = record[ORIGINS] if ORIGINS in record else [record[ORIGIN]]
        else:
            with self._name_damage(shard):
                origins = [self._reader(shard.origins, "arrow").row(row)[ORIGIN]]
        return [self._origin(origin, shard, row) for origin in origins]

    def decode(self, index: SupportsIndex) -> str:
        """Decode a row of tokens, without padding and with special tokens."""
        return self._tokenizer.decode(self._tokens(index)[0])

    def documents(self, index: SupportsIndex) -> list[str]:
        """Decode the documents, or pieces of documents, in a row of tokens, with special tokens."""
        ids, _ = self._tokens(index)
        ends = np.cumsum(self[index][LENGTHS])
        return [self._tokenizer.decode(piece) for piece in np.split(ids, ends[:-1])] if len(ends) else []

    def spans(self, index: SupportsIndex) -> list[tuple[str, bool]]:
        """Decode a row of tokens in spans, and tell whether each is trained."""
        ids, trained = self._tokens(index)
        borders = np.flatnonzero(np.diff(trained)) + 1
        pieces = zip(np.split(ids, borders), np.split(trained, borders), strict=True)
        return [(self._tokenizer.decode(piece), bool(marks[0])) for piece, marks in pieces if len(piece)]

    def decode_ids(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Decode token ids by the tokenizer of this dataset, with special tokens."""
        return self._tokenizer.decode(ids)

    def _tokens(self, index: SupportsIndex) -> tuple[NDArray[np.unsignedinteger], NDArray[np.bool_]]:
        """Return the ids of a row without padding, and which of them are trained."""
        record = self[index]
        if not self.manifest.holds_rows:
            raise UsageError(
                f"{self.folder} holds {self.manifest.kind}, not tokens",
                help='read the text of a record with ds[i]["text"]',
            )
        num_tokens = int(record[LENGTHS].sum())
        trained = record.get(LOSS_MASK, np.ones(num_tokens, dtype=np.bool_))
        return record[INPUT_IDS][:num_tokens], trained[:num_tokens]

    @cached_property
    def _shard_schema(self) -> pa.Schema | None:
        # The columns of tars say which members they are.
        return self.schema if self.manifest.format == "webdataset" else self.manifest.shard_schema()

    @cached_property
    def _tokenizer(self) -> TextDecoder:
        from gristmill.text.tokenizers.byte_lengths import load_decoder  # noqa: PLC0415
        from gristmill.text.tokenizers.files import find_tokenizer  # noqa: PLC0415  (only for rows of tokens)

        identity = self.manifest.tokenizer
        if identity is not None and not identity.files:
            return _NumberWriter()
        return load_decoder(find_tokenizer(str(self.manifest.tokenizer_folder(self.folder))))

    def quarantine(self) -> Iterator[dict[str, Any]]:
        """Iterate over quarantined records: origin, step, reason, and the record itself if it was small enough."""
        for file in self.manifest.quarantine.files:
            with open_file(self, file) as path:
                yield from open_shard(path, "jsonl").rows()

    def verify(self) -> Verification:
        """Read the whole dataset and compare it with the manifest."""
        return verify(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_open": OrderedDict()}
        state.pop("_tokenizer", None)
        return state

    def _find(self, index: SupportsIndex) -> tuple[Shard, int]:
        number = original = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"there is no record {original}: the dataset has {len(self)}")
        position = int(np.searchsorted(self._ends, number, side="right"))
        shard = self._shards[position][2]
        return shard, number - int(self._ends[position]) + shard.rows

    def _origin(self, origin: Mapping[str, int], shard: Shard, row: int) -> Origin:
        key = file_key(origin["file"])
        file = self.manifest.files.get(key)
        if file is None:
            raise make_damage_error(
                shard.path, f"names an input file in row {row} that is not in the manifest: {key}", self.folder
            )
        return Origin(file.source, file.path, origin["position"], origin["part"])

    def _read(self, shard: Shard, row: int) -> ShardRecord:
        with self._name_damage(shard):
            return self._reader(shard, self.manifest.format, self.manifest.kind).row(row)

    def _reader(self, file: StoredFile, format: str, kind: str = "documents") -> ShardReader:
        """Return the open reader of a file. The readers used last stay open."""
        reader = self._open.pop(file.path, None)
        if reader is None:
            schema = self._shard_schema if isinstance(file, Shard) else ORIGINS_SCHEMA
            reader = open_shard(self._check_size(file), format, kind, schema)
        self._open[file.path] = reader
        if len(self._open) > _MAX_OPEN_SHARDS:
            self._open.popitem(last=False)
        return reader

    def _check_size(self, file: StoredFile) -> Path:
        """Check the size of a file and return its path: reading a page past the end would kill the process."""
        path = file.copy_below(self.folder)
        num_bytes = path.stat().st_size
        if num_bytes != file.bytes:
            raise make_damage_error(file.path, f"has {num_bytes} bytes, but {file.bytes} were written", self.folder)
        return path

    @contextmanager
    def _name_damage(self, file: StoredFile) -> Iterator[None]:
        """Turn an error of reading a file into one that names the file."""
        try:
            yield
        except (*READ_ERRORS, CorruptStreamError) as error:
            raise make_damage_error(file.path, f"cannot be read: {error}", self.folder) from error


class _NumberWriter:
    """Shows ids as numbers, where the dataset knows the size of the vocabulary and no tokenizer."""

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return " ".join(map(str, ids))
