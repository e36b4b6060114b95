"""Third-party tables as a dataset to stream: Parquet files, and folders that `datasets` has written (`save_to_disk`).

A block is a row group of a Parquet file or a batch of an Arrow file, which one pass over footers or message headers
finds. When a block is first needed it is converted (`table_blocks`) and kept in the cache of blocks, where its rows are
read like those of any shard. So a table is decoded once, in any order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.media import ANY_IMAGE, IMAGE_EXTENSIONS, MEMBER, SAMPLES, get_extension, list_image_structs
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.core.splits import TRAIN
from gristmill.readers.tables.hub_folder import SAVED_DESCRIPTIONS, arrange_folder
from gristmill.shards.block_index import LaneBlocks
from gristmill.shards.manifest import Manifest
from gristmill.shards.stored_files import MANIFEST, Schema
from gristmill.shards.token_rows import CHATS, TOKENS
from gristmill.storage.files import open_stream_source
from gristmill.storage.locations import is_remote, list_names, parse_location
from gristmill.storage.paths import find_files
from gristmill.stream.lanes.table_blocks import (
    ForeignDataset,
    ForeignFile,
    TableFile,
    describe_shard,
    identify_file,
    index_files,
    open_parquet,
    rows_schema_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.storage.locations import Location
    from gristmill.storage.paths import ListedFile
    from gristmill.stream.lanes.table_blocks import Arrays


SOURCE = "tables"
_READ_ERRORS = (OSError, ValueError, pa.ArrowException)


def describe_tables(path: str, ids: str | None, *, as_samples: bool) -> ForeignDataset:
    """Describe tables as a dataset: of rows of tokens if they have a column of ids, otherwise of samples.

    Args:
        path: A pattern of Parquet files, or a folder of `datasets`.
        ids: The column of token ids; None: `input_ids`, if there is one.
        as_samples: Whether rows are samples in any case.
    """
    is_parquet = path.endswith(".parquet")
    files = find_files(path)
    arranged = {TRAIN: files} if is_parquet else arrange_folder(files, path).splits
    splits = {name or TRAIN: split_files for name, split_files in arranged.items()}
    files = [file for listed in splits.values() for file in listed]
    indexes = index_files(files, "tables", _index_parquet if is_parquet else _index_arrow, _is_usable)
    schema = _find_schema(files, indexes)
    column = ids if ids is not None else INPUT_IDS if INPUT_IDS in schema.names else None
    if as_samples:
        column = None
    elif column is not None and column not in schema.names:
        raise UsageError(
            f"{path} has no column {ids}, only {_describe(schema)}", help='name its ids: Samples(ids="input_ids")'
        )
    described: dict[str, ForeignFile] = {}
    for file, index in zip(files, indexes, strict=True):
        table = TableFile(file.path, "parquet" if is_parquet else "arrow", file.num_bytes, file.version, schema, column)
        offsets, sizes, rows = index["blocks"]
        no_numbers = np.zeros(len(rows), np.int64)
        blocks = LaneBlocks(no_numbers, offsets, sizes, rows, no_numbers.astype(np.uint64))
        described[file.path] = ForeignFile(identify_file(file), file.version, blocks, table=table)
    stored = rows_schema_of(schema, column) if column is not None else schema
    kind = SAMPLES if column is None else CHATS if LOSS_MASK in stored.names else TOKENS
    manifest = Manifest(
        kind=kind,
        format="arrow",
        schema=Schema.of(stored),
        splits={
            split: {SOURCE: [describe_shard(file, int(described[file.path].blocks.rows.sum())) for file in listed]}
            for split, listed in splits.items()
        },
        books={},
        recipe={},
        versions={},
    ).seal()
    return ForeignDataset(files[0].path[: -len(files[0].relative)], manifest, described)


def _find_schema(files: Sequence[ListedFile], indexes: Sequence[Arrays]) -> pa.Schema:
    noted = [pa.ipc.read_schema(pa.py_buffer(index["schema"].tobytes())) for index in indexes]
    schemas = [schema.remove_metadata() for schema in noted]
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise UsageError(
                f"{file.path} has other columns than {files[0].path}: {_describe(schema)}, not {_describe(schemas[0])}",
                help="stream them as two datasets, or write them with the same columns and types",
            )
    schema = schemas[0]
    for name in list_image_structs(noted[0]):
        number = schema.get_field_index(name)
        schema = schema.set(number, schema.field(number).with_metadata({MEMBER: ANY_IMAGE.encode()}))
    return schema


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _index_parquet(file: ListedFile) -> Arrays:
    try:
        parquet = open_parquet(file.path, file.num_bytes, file.version)
        schema, metadata = parquet.schema_arrow, parquet.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except _READ_ERRORS as error:
        raise UsageError(f"{file.path} cannot be read as Parquet: {error}", help="write it again") from error
    sizes = [sum(group.column(number).total_compressed_size for number in range(group.num_columns)) for group in groups]
    return _to_arrays(schema, list(range(len(groups))), sizes, [group.num_rows for group in groups])


def _index_arrow(file: ListedFile) -> Arrays:
    offsets, sizes, rows = [], [], []
    location = parse_location(file.path)
    try:
        with open_stream_source(location) as stream, pa.ipc.open_stream(stream) as reader:
            schema = reader.schema
        with open_stream_source(location) as stream:
            messages = pa.ipc.MessageReader.open_stream(stream)
            messages.read_next_message()  # the schema
            start = stream.tell()
            for message in messages:
                if message.type != "record batch":
                    raise ValueError("it has columns of the type dictionary")
                offsets.append(start)
                sizes.append(stream.tell() - start)
                rows.append(pa.ipc.read_record_batch(message, schema).num_rows)
                start = stream.tell()
    except _READ_ERRORS as error:
        raise UsageError(f"{file.path} cannot be read as an Arrow stream: {error}", help="save it again") from error
    return _to_arrays(schema, offsets, sizes, rows)


def _to_arrays(schema: pa.Schema, offsets: list[int], sizes: list[int], rows: list[int]) -> Arrays:
    numbers = np.array([offsets, sizes, rows], np.int64)
    return {"schema": np.frombuffer(schema.serialize(), np.uint8), "blocks": numbers[:, numbers[2] > 0]}


def _is_usable(index: Arrays, file: ListedFile) -> bool:  # noqa: ARG001
    blocks = index.get("blocks")
    if blocks is None or "schema" not in index or blocks.dtype != np.int64 or blocks.ndim != 2 or len(blocks) != 3:
        return False
    return not bool(np.any(blocks < 0))


def names_tables(path: str) -> bool:
    """Whether a path names Parquet files, or a folder that `datasets` has written."""
    if path.endswith(".parquet"):
        return not Path(path, MANIFEST).is_file()
    folder = parse_location(path)
    return any((folder / name).is_file() for name in SAVED_DESCRIPTIONS) and not _is_ours(folder)


def names_images(path: str) -> bool:
    """Whether a path names a local folder of images, perhaps in subfolders."""
    folder = Path(path)
    if "://" in path or not folder.is_dir() or _is_ours(folder):
        return False
    return any(get_extension(name) in IMAGE_EXTENSIONS for _, _, names in os.walk(folder) for name in names)


def _is_ours(folder: Location) -> bool:
    """Whether a folder is a dataset of Gristmill, a split of one, or the output of a run that has not ended."""
    if (folder / MANIFEST).is_file() or (not is_remote(folder) and (folder.parent / MANIFEST).is_file()):
        return True
    return any(name.startswith(".gristmill") for name in list_names(folder))
