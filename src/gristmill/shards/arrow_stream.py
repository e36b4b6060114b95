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
from gristmill.storage.mapped_files import open_stream_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.locations import Location

STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

ORIGINS_SCHEMA = pa.schema([(ORIGIN, ORIGIN_TYPE)])
SAMPLE_BYTES = "bytes"
SAMPLES_SCHEMA = ORIGINS_SCHEMA.append(pa.field(SAMPLE_BYTES, pa.uint64()))
"""The columns of a side file of samples: it is also the index of the shard, by the bytes of each sample."""


def stream_header(schema: pa.Schema) -> bytes:
    """Encode the header of a stream with a canonical schema."""
    return bytes(schema.serialize())


def stream_block(batch: pa.RecordBatch, schema: pa.Schema) -> bytes | pa.Buffer:
    """Encode a batch as one message; a batch without rows as nothing."""
    return canonicalize_batch(batch, schema).serialize() if batch.num_rows else b""


def stream_pieces(batch: pa.RecordBatch, schema: pa.Schema) -> list[bytes | pa.Buffer]:
    """Encode a batch as the pieces of one message, which are the batch's own buffers: only small ones are copies."""
    if not batch.num_rows:
        return []
    stream = _PieceStream()
    pa.ipc.new_stream(pa.PythonFile(stream, mode="w"), schema).write_batch(canonicalize_batch(batch, schema))
    num_left = len(stream_header(schema))  # the stream begins with a header of its own
    first = 0
    while num_left > 0:
        num_left -= len(stream.pieces[first])
        first += 1
    return stream.pieces[first:]


class _PieceStream:
    """A file that keeps what is written to it, as far as Arrow uses one."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes | pa.Buffer] = []

    def write(self, piece: bytes | pa.Buffer) -> None:
        self.pieces.append(piece)


def origins_header(*, has_sizes: bool = False) -> bytes:
    """Encode the header of a side file of origins, for shards in formats that cannot hold them."""
    return stream_header(SAMPLES_SCHEMA if has_sizes else ORIGINS_SCHEMA)


def origins_block(batch: pa.RecordBatch, sizes: list[int] | None = None) -> bytes | pa.Buffer:
    """Encode the origins of the records in a batch, and the bytes of each in its shard if they are an index of it."""
    if sizes is None:
        return stream_block(batch, ORIGINS_SCHEMA)
    columns = [batch.column(ORIGIN), pa.array(sizes, pa.uint64())]
    return stream_block(pa.RecordBatch.from_arrays(columns, schema=SAMPLES_SCHEMA), SAMPLES_SCHEMA)


def origins_footer() -> bytes:
    return STREAM_END


def read_mapped_batches(path: Location, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
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


def read_unchecked_batches(path: Location, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Like `read_mapped_batches`, but only the sizes of buffers are checked, not their values: no row is read."""
    with open_stream_source(path) as mapped, pa.ipc.open_stream(mapped) as stream:
        is_index = schema is ORIGINS_SCHEMA and stream.schema.equals(SAMPLES_SCHEMA)  # has the origins too
        if schema is not None and not is_index and not stream.schema.equals(schema):
            raise ValueError("its columns are not those in the manifest")
        for batch in stream:
            batch.validate()
            yield batch
