"""Third-party files as a stream reads them: what one pass over a file found, and blocks of tables as Arrow messages.

What the pass finds is kept in the user's cache folder for the next process, named by the path, size and version of the
file, so it is never stale. Several threads index remote files, because each waits for its store.

A block of a table holds samples as they are stored, or rows of tokens in our columns. What trainers keep with ids is
understood: `labels` and `loss_mask` say which tokens are trained, `attention_mask` where padding begins, `lengths` and
`seq_lengths` which documents a packed row has. Anything that contradicts the ids is an error that names the row.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.shards.stored_files import Shard
from gristmill.shards.token_rows import LENGTHS
from gristmill.storage.commit import make_folder, write_file
from gristmill.storage.files import check_unchanged, read_range
from gristmill.storage.locations import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow.parquet as pq
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from gristmill.shards.block_index import LaneBlocks
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.paths import ListedFile

    Arrays = Mapping[str, NDArray[Any]]


_NUM_THREADS = 8
_LABELS, _ATTENTION, _SEQUENCES = "labels", "attention_mask", "seq_lengths"
_IGNORED = -100
_NUMBERS = {pa.bool_(), *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64))}
_NUMBERS |= {pa.float16(), pa.float32(), pa.float64()}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, and what becomes of its blocks."""

    path: str
    form: Literal["parquet", "arrow"]
    num_bytes: int
    version: str
    schema: pa.Schema
    """The columns as they are stored."""
    ids: str | None
    """The column of token ids; None: rows are samples."""


def convert_block(table: TableFile, offset: int, num_bytes: int) -> bytes:
    """Read the block at a place of its file, which is the number of a row group in Parquet, and encode it."""
    columns = None if table.ids is None else find_row_columns(table.schema, table.ids)
    try:
        if table.form == "parquet":
            parquet = open_parquet(table.path, table.num_bytes, table.version)
            batches = parquet.read_row_group(offset, columns=columns, use_threads=False).combine_chunks().to_batches()
            if len(batches) != 1:
                raise ValueError("a row group has more than 2 GiB in a column")
            batch = batches[0]
        else:
            file = _RangeFile(table.path, table.num_bytes, table.version)
            message = pa.ipc.read_message(pa.py_buffer(file.read_range(offset, offset + num_bytes)))
            batch = pa.ipc.read_record_batch(message, table.schema)
            batch.validate(full=True)
        batch = batch.replace_schema_metadata(None)
        return bytes((batch if table.ids is None else make_rows(batch, table.ids)).serialize())
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, GristmillError):
            raise
        raise UsageError(f"{table.path} cannot be streamed: {error}", help="write it again") from error


def find_row_columns(schema: pa.Schema, ids: str) -> list[str]:
    """Find the columns that rows of tokens are made of."""
    known = (ids, LOSS_MASK, _LABELS, _ATTENTION, LENGTHS, _SEQUENCES)
    return [name for name in schema.names if name in known]


def rows_schema_of(schema: pa.Schema, ids: str) -> pa.Schema:
    """Return the columns of the rows of tokens that are made of a table."""
    kind = schema.field(ids).type
    if not _is_list(kind) or not pa.types.is_integer(kind.value_type):
        raise UsageError(f"the column {ids} is {kind}, not lists of token ids", help='name the column of ids: ids="…"')
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
    value = pa.uint16() if kind.value_type == pa.uint16() else pa.uint32()
    fields = [(INPUT_IDS, pa.list_(value, size)), (LENGTHS, pa.list_(pa.int32()))]
    if LOSS_MASK in schema.names or _LABELS in schema.names:
        fields.append((LOSS_MASK, pa.list_(pa.bool_(), size)))
    return pa.schema(fields)


def make_rows(batch: pa.RecordBatch, ids: str) -> pa.RecordBatch:
    """Make rows of tokens of a table's rows."""
    schema = rows_schema_of(batch.schema, ids)
    values, sizes = _flatten(batch, ids)
    limit = 1 << (16 if schema.field(INPUT_IDS).type.value_type == pa.uint16() else 31)
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < limit:
        raise ValueError(f"its ids are from {values.min()} to {values.max()}, and ids are from 0 to {limit - 1}")
    ends = np.cumsum(sizes)
    lengths = _find_lengths(batch, sizes, ends)
    if isinstance(lengths, np.ndarray):
        lengths = lengths[:, None].tolist()
    columns = {
        INPUT_IDS: _to_lists(values, sizes, schema.field(INPUT_IDS).type),
        LENGTHS: pa.array(lengths, pa.list_(pa.int32())),
    }
    if LOSS_MASK in schema.names:
        columns[LOSS_MASK] = _to_lists(_find_mask(batch, values, sizes), sizes, schema.field(LOSS_MASK).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _find_lengths(
    batch: pa.RecordBatch, sizes: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64] | list[list[int]]:
    """Find the lengths of the documents of each row, or the length of its only one."""
    for name in (LENGTHS, _SEQUENCES):
        if name in batch.schema.names and _is_list(batch.schema.field(name).type):
            _flatten(batch, name)  # raises an error for what is no number
            documents: list[list[int]] = batch.column(name).to_pylist()
            for row, (lengths, size) in enumerate(zip(documents, sizes.tolist(), strict=True)):
                if not lengths or min(lengths) < 0 or sum(lengths) > size:
                    raise ValueError(f"row {row} of a block has {size} ids, and {name} {lengths}")
            return documents
    if _ATTENTION not in batch.schema.names:
        return sizes
    mask = _flatten_like(batch, _ATTENTION, sizes) != 0
    counts = np.array([int(part.sum()) for part in np.split(mask, ends[:-1])], np.int64)
    inside = np.arange(len(mask)) - np.repeat(ends - sizes, sizes)
    if not np.array_equal(mask, inside < np.repeat(counts, sizes)):
        raise ValueError(f"{_ATTENTION} is 0 before the end of a row: only padding at the end is understood")
    return counts


def _find_mask(batch: pa.RecordBatch, ids: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    if LOSS_MASK in batch.schema.names:
        trained: NDArray[np.bool_] = _flatten_like(batch, LOSS_MASK, sizes) != 0
        return trained
    labels = _flatten_like(batch, _LABELS, sizes)
    trained = labels != _IGNORED
    if not np.array_equal(labels[trained], ids[trained]):
        raise ValueError(f"its {_LABELS} differ from its ids and are not {_IGNORED}: rows of tokens cannot keep them")
    return trained


def _flatten_like(batch: pa.RecordBatch, name: str, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    values, own_sizes = _flatten(batch, name)
    if not np.array_equal(sizes, own_sizes):
        raise ValueError(f"{name} has other lengths than the ids")
    return values


def _flatten(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of a column of lists, one row after the other, and the length of each row."""
    column = batch.column(name)
    values_type = column.type.value_type if _is_list(column.type) else None
    if values_type not in _NUMBERS:
        raise ValueError(f"the column {name} is {column.type}, not lists of numbers")
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise ValueError(f"the column {name} has nulls")
    values = flat.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f" and not np.array_equal(values, np.trunc(values)):
        raise ValueError(f"the column {name} has fractions: rows of tokens cannot keep weights of tokens")
    sizes = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    return values.astype(np.int64, copy=False), sizes.astype(np.int64, copy=False)


def _to_lists(values: NDArray[np.generic], sizes: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    flat = pa.array(values).cast(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if offsets[-1] >= 1 << 31:
        raise ValueError("a block has 2^31 ids or more")
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat).cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def open_parquet(path: str, num_bytes: int, version: str) -> pq.ParquetFile:
    """Open a Parquet file for one thread. Its footer is kept."""
    return _open_parquet(path, num_bytes, version, _read_footer(path, num_bytes, version))


@lru_cache(maxsize=256)
def _read_footer(path: str, num_bytes: int, version: str) -> pq.FileMetaData:
    return _open_parquet(path, num_bytes, version, None).metadata


def _open_parquet(path: str, num_bytes: int, version: str, footer: pq.FileMetaData | None) -> pq.ParquetFile:
    import pyarrow.parquet as pq  # noqa: PLC0415  (it also loads the clients of object stores: 60 ms)

    return pq.ParquetFile(pa.PythonFile(_RangeFile(path, num_bytes, version), mode="r"), metadata=footer)


class _RangeFile(io.RawIOBase):
    """A file that is read by ranges of one version: a request for each, and nothing is read ahead."""

    def __init__(self, path: str, num_bytes: int, version: str) -> None:
        super().__init__()
        self._path = path
        self._num_bytes = num_bytes
        self._version = version
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence] + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        stop = self._num_bytes if size is None or size < 0 else min(self._position + size, self._num_bytes)
        data = self.read_range(self._position, stop)
        self._position += len(data)
        return data

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read_range(self, start: int, stop: int) -> bytes:
        if not is_remote(self._path):  # a store compares the version itself
            check_unchanged(self._path, self._num_bytes, self._version)
        return read_range(self._path, start, stop, self._version)


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A third-party file, with what a stream must know to read it like a shard."""

    key: str
    """Identifies the file with its content: by path, size and version."""
    version: str
    blocks: LaneBlocks
    starts: NDArray[np.int64] | None = None
    """Where each sample of a tar begins, and where the last one ends."""
    table: TableFile | None = None


@dataclass(frozen=True, slots=True)
class ForeignDataset:
    """Third-party files, described as if they were a dataset of Gristmill."""

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
    """Return what `make` finds out about each file, from the cache if that has a usable entry."""
    folder = Path(choose_cache_folder(str(Path.home()), sys.platform, kind))
    places = {file.path: folder / f"{identify_file(file)}.npz" for file in files}

    def index_one(file: ListedFile) -> Arrays:
        arrays = make(file)
        sink = io.BytesIO()
        np.savez(sink, allow_pickle=False, **arrays)
        with suppress(OSError):  # only the next process is slower
            make_folder(folder)
            write_file(str(places[file.path]), sink.getvalue(), kind)
        return arrays

    # In this thread: headers of arrays are parsed as Python, which Python 3.11 cannot do in two threads at once
    # (cpython#106905).
    indexes = {
        file.path: arrays
        for file in files
        if (arrays := _load(places[file.path])) is not None and is_usable(arrays, file)
    }
    missing = [file for file in files if file.path not in indexes]
    with ThreadPoolExecutor(_NUM_THREADS if any("://" in file.path for file in missing) else 1) as pool:
        indexes.update(zip([file.path for file in missing], pool.map(index_one, missing), strict=True))
    return [indexes[file.path] for file in files]


def _load(path: Path) -> Arrays | None:
    """Load what an earlier pass found; None if there is nothing, or something that cannot be right."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
