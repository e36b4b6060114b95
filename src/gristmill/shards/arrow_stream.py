"""Arrow IPC streams made of independent blocks: a header, one message for each batch, and an end mark.

A message depends on its batch alone, so blocks can be encoded anywhere and joined in any grouping. Streams are
memory-mapped for reading: opening a stream of k batches reads k small message headers, and a row is read from the disk
when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.records import ORIGIN, ORIGIN_TYPE
from gristmill.shards.canonical import canonicalize_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

ORIGINS_SCHEMA = pa.schema([(ORIGIN, ORIGIN_TYPE)])


def stream_header(schema: pa.Schema) -> bytes:
    """Encode the header of a stream with a canonical schema."""
    return bytes(schema.serialize())


def stream_block(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    """Encode a batch as one message; a batch without rows as nothing."""
    return bytes(canonicalize_batch(batch, schema).serialize()) if batch.num_rows else b""


def origins_header() -> bytes:
    """Encode the header of a side file of origins, for shards in formats that cannot hold them."""
    return stream_header(ORIGINS_SCHEMA)


def origins_block(batch: pa.RecordBatch) -> bytes:
    """Encode the origins of the records in a batch."""
    return stream_block(batch, ORIGINS_SCHEMA)


def origins_footer() -> bytes:
    return STREAM_END


def read_mapped_batches(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Read the batches of a stream on disk, as views of the mapped file: nothing is copied.

    Each batch is checked completely before it is yielded (1 GB/s for texts, far more for numbers). Arrow itself checks
    no buffer when it reads a stream: a buffer that is too short, or offsets beyond its end, would be read past the end.

    Raises:
        ArrowInvalid: A batch is damaged.
        ValueError: The columns differ from `schema`.
    """
    for batch in read_unchecked_batches(path, schema):
        batch.validate(full=True)
        yield batch


def read_unchecked_batches(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Like `read_mapped_batches`, but only the sizes of buffers are checked, not their values: no row is read."""
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        if schema is not None and not stream.schema.equals(schema):
            raise ValueError("its columns are not those in the manifest")
        for batch in stream:
            batch.validate()
            yield batch
