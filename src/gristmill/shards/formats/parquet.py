"""Parquet shards: a row group for each 32 MiB of records, with all writer settings fixed.

A Parquet file cannot be joined from blocks, so the blocks are an Arrow stream, and the shard is written from it at the
end. Memory for writing: one row group, joined and encoded, about 140 MiB at its peak; for reading: one row group.

In memory a column of images is plain bytes. In a Parquet file it is the struct of `bytes` and `path` that Hugging
Face's `datasets` shows as pictures, and the file's metadata names the feature, so that `datasets` and the viewer of the
Hub decode it.
"""

from __future__ import annotations

import bisect
import io
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.media import find_image_extension, list_image_columns, note_features, read_features
from gristmill.core.records import KEY
from gristmill.shards.canonical import STREAM_END, canonicalize_batch, stream_block, stream_header
from gristmill.shards.formats.base import ROWS_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from gristmill.shards.formats.base import ByteSink, ShardRecord


ROW_GROUP_BYTES = 32 << 20
_ZSTD_LEVEL = 3
_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True, slots=True)
class ParquetEncoder:
    """An `Encoder` whose blocks are an Arrow stream, to be written by `write_parquet`."""

    schema: pa.Schema
    suffix: str = ".parquet"
    concatenates: bool = False
    holds_origins: bool = True

    def header(self) -> bytes:
        return stream_header(self.schema)

    def block(self, batch: pa.RecordBatch) -> bytes | pa.Buffer:
        return stream_block(batch, self.schema)

    def footer(self) -> bytes:
        return STREAM_END


def write_parquet(
    schema: pa.Schema,
    codec: str | None,
    batches: Iterable[pa.RecordBatch],
    sink: ByteSink,
    row_group_rows: int | None = None,
) -> None:
    """Write one file from batches.

    Where row groups end depends on the batches alone: after 32 MiB, or after `row_group_rows` rows.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  (it also loads the clients of object stores: 60 ms)

    with pq.ParquetWriter(
        _ForwardingFile(sink),
        to_parquet_schema(schema),
        version="2.6",
        data_page_version="1.0",
        compression=codec or "none",
        compression_level=_ZSTD_LEVEL if codec == "zstd" else None,
        write_statistics=True,
        use_dictionary=True,
        store_schema=True,
    ) as writer:
        images = list_image_columns(schema)
        if row_group_rows is None:
            tables = _cut_row_groups(schema, batches)
        else:
            tables = _cut_after_rows(schema, batches, row_group_rows)
        for table in tables:
            writer.write_table(wrap_images(table, images) if images else table, row_group_size=table.num_rows)


def _cut_row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(canonicalize_batch(batch, schema))
        size += group[-1].nbytes
        if size >= ROW_GROUP_BYTES:
            yield _combine_batches(group)
            size = 0
    if group:
        yield _combine_batches(group)


def _cut_after_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    missing = num_rows
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            group.append(canonicalize_batch(batch.slice(start, missing), schema))
            start += group[-1].num_rows
            missing -= group[-1].num_rows
            if not missing:
                yield _combine_batches(group)
                missing = num_rows
    if group:
        yield _combine_batches(group)


def _combine_batches(batches: list[pa.RecordBatch]) -> pa.Table:
    """Join batches into one chunk, because pages end where chunks do.

    This empties the list: otherwise the records would be in memory twice.
    """
    joined = pa.Table.from_batches(batches).combine_chunks()
    batches.clear()
    return joined


class _ForwardingFile(io.RawIOBase):
    """A file for the Parquet writer that forwards the bytes to a sink and knows its position."""

    def __init__(self, sink: ByteSink) -> None:
        super().__init__()
        self._sink = sink
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Buffer, /) -> int:
        chunk = bytes(data)
        self._sink.write(chunk)
        self._position += len(chunk)
        return len(chunk)


class ParquetShard:
    """A Parquet file, read one row group at a time."""

    def __init__(self, path: Path, schema: pa.Schema | None) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415

        self._file = pq.ParquetFile(str(path), buffer_size=1 << 20)
        if schema is not None and not self._file.schema_arrow.equals(to_parquet_schema(schema)):
            raise ValueError("its columns are not those in the manifest")
        self._images = [] if schema is None else list_image_columns(schema)
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        self._ends = list(itertools.accumulate(metadata.row_group(group).num_rows for group in groups))
        self._current: tuple[int, pa.Table] | None = None

    def row(self, index: int) -> ShardRecord:
        number = bisect.bisect_right(self._ends, index)
        if self._current is None or self._current[0] != number:
            self._current = None  # frees the last group before the next is read
            self._current = (number, self._file.read_row_group(number))
        table = self._current[1]
        record: ShardRecord = table.slice(index - self._ends[number] + table.num_rows, 1).to_pylist()[0]
        return unwrap_images(record, self._images)

    def rows(self) -> Iterator[ShardRecord]:
        for batch in self._file.iter_batches(batch_size=ROWS_AT_A_TIME):
            yield from (unwrap_images(record, self._images) for record in batch.to_pylist())

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self._file.iter_batches(batch_size=ROWS_AT_A_TIME))


def to_parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a Parquet file of records with these columns."""
    images = list_image_columns(schema)
    if not images:
        return schema
    for name in images:
        schema = schema.set(schema.get_field_index(name), schema.field(name).with_type(_STRUCT))
    return note_features(schema, {**read_features(schema), **{name: {"_type": "Image"} for name in images}})


def wrap_images(table: pa.Table, images: Sequence[str]) -> pa.Table:
    """Make structs of the columns of images; a path is the key of the sample with the extension of its format."""
    keys = table.column(KEY).to_pylist() if KEY in table.schema.names else [None] * table.num_rows
    for name in images:
        contents = table.column(name).combine_chunks()
        paths = [
            None
            if key is None or not content.is_valid
            else f"{key}.{find_image_extension(bytes(memoryview(content.as_buffer())[:16]))}"
            for key, content in zip(keys, contents, strict=True)
        ]
        structs = pa.StructArray.from_arrays(
            [contents.cast(pa.binary()), pa.array(paths, pa.string())], fields=list(_STRUCT), mask=contents.is_null()
        )
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index).with_type(_STRUCT), structs)
    return table


def unwrap_images(record: ShardRecord, images: Sequence[str]) -> ShardRecord:
    """Replace the structs of a record by the bytes in them; the record itself is changed."""
    for name in images:
        record[name] = None if record[name] is None else record[name]["bytes"]
    return record


def unwrap_image_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Replace the structs of a batch by the bytes in them: its columns are then those of `schema`."""
    arrays = batch.columns
    for name in list_image_columns(schema):
        index = schema.get_field_index(name)
        arrays[index] = pc.struct_field(arrays[index], "bytes").cast(schema.field(index).type)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
