"""Parquet: a row group for each 32 MiB of records, with all writer settings fixed.

A Parquet file cannot be joined from blocks, so the blocks are an Arrow stream, and the shard is written from that in
one go at the end. Memory: one row group, joined and encoded, about 140 MiB at its peak.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.shards.arrow_stream import STREAM_END, stream_block, stream_header
from gristmill.shards.canonical import canonical_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

ROW_GROUP_BYTES = 32 << 20
_ZSTD_LEVEL = 3


@dataclass(frozen=True, slots=True)
class ParquetEncoder:
    """See `Encoder`."""

    schema: pa.Schema
    suffix: str = ".parquet"
    concatenates: bool = False
    holds_origins: bool = True

    def header(self) -> bytes:
        return stream_header(self.schema)

    def block(self, batch: pa.RecordBatch) -> bytes:
        return stream_block(batch, self.schema)

    def footer(self) -> bytes:
        return STREAM_END


class _ByteSink(Protocol):
    def write(self, data: bytes, /) -> object: ...


def write_parquet(schema: pa.Schema, codec: str | None, batches: Iterable[pa.RecordBatch], sink: _ByteSink) -> None:
    """Write one file from batches; where row groups end depends on the batches alone."""
    with pq.ParquetWriter(
        _ForwardingFile(sink),
        schema,
        version="2.6",
        data_page_version="1.0",
        compression=codec or "none",
        compression_level=_ZSTD_LEVEL if codec == "zstd" else None,
        write_statistics=True,
        use_dictionary=True,
        store_schema=True,
    ) as writer:
        for table in _row_groups(schema, batches):
            writer.write_table(table, row_group_size=table.num_rows)


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(canonical_batch(batch, schema))
        size += group[-1].nbytes
        if size >= ROW_GROUP_BYTES:
            yield _combine_batches(group)
            size = 0
    if group:
        yield _combine_batches(group)


def _combine_batches(batches: list[pa.RecordBatch]) -> pa.Table:
    """As one chunk, because pages end where chunks do. Empties the list: the records would stay twice in memory."""
    joined = pa.Table.from_batches(batches).combine_chunks()
    batches.clear()
    return joined


class _ForwardingFile(io.RawIOBase):
    """The writer wants a file; this passes what is written on and knows how much it was."""

    def __init__(self, sink: _ByteSink) -> None:
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
