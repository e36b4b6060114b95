"""Arrow IPC streams made of independent blocks: header + one message a batch + end mark.

A message depends on its batch alone, so the blocks of a stream can be encoded anywhere and joined in any grouping.
Streams are memory-mapped for reading: opening one of k batches reads k small message headers, and rows are only touched
when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.records import ORIGIN, ORIGIN_TYPE
from gristmill.shards.canonical import canonical_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

ORIGINS_SCHEMA = pa.schema([(ORIGIN, ORIGIN_TYPE)])


def stream_header(schema: pa.Schema) -> bytes:
    """The start of a stream of a canonical schema."""
    return bytes(schema.serialize())


def stream_block(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    """One batch as a message; nothing for no rows."""
    return bytes(canonical_batch(batch, schema).serialize()) if batch.num_rows else b""


def origins_header() -> bytes:
    """The start of a file that holds only origins, for shards in formats that cannot hold them."""
    return stream_header(ORIGINS_SCHEMA)


def origins_block(batch: pa.RecordBatch) -> bytes:
    """The origins of the records in a batch."""
    return stream_block(batch, ORIGINS_SCHEMA)


def origins_footer() -> bytes:
    return STREAM_END


def mapped_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a stream on disk, as views of the mapped file: no row is read or copied."""
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        yield from stream
