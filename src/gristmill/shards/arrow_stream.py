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


def mapped_batches(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The batches of a stream on disk, as views of the mapped file: nothing is copied.

    Each is checked whole before it is given out (1 GB/s for texts, far more for numbers). Arrow itself looks at no
    buffer when it reads a stream: one that is shorter than its rows, or offsets that lead out of it, would be read
    beyond its end.

    Raises:
        ArrowInvalid: A batch is damaged.
        ValueError: The columns are not those of `schema`.
    """
    for batch in unchecked_batches(path, schema):
        batch.validate(full=True)
        yield batch


def unchecked_batches(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The same, where the sizes of buffers are checked and what they hold is not: no row is read."""
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        if schema is not None and not stream.schema.equals(schema):
            raise ValueError("its columns are not those of the manifest")
        for batch in stream:
            batch.validate()
            yield batch
