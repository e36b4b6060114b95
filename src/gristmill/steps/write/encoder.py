"""From batches to the bytes of a shard: header + blocks + footer.

An encoder keeps no state, so the same batch gives the same block wherever it is encoded, and a shard is the blocks of
its batches in order, however they were grouped on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa

from gristmill.core.records import CARRIES_ALL, KEY, PATH, RECORD, SPLIT, TYPE_REASON
from gristmill.shards.canonical import canonical_schema
from gristmill.steps.write.arrow import ArrowEncoder
from gristmill.steps.write.jsonl import JsonlEncoder
from gristmill.steps.write.parquet import ParquetEncoder, write_parquet
from gristmill.steps.write.tar import TarEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.steps.write.write import Write
    from gristmill.storage.compression import Codec


class ByteSink(Protocol):
    """Something that bytes can be written to."""

    def write(self, data: bytes, /) -> object: ...


class Encoder(Protocol):
    """One format, deterministic, without I/O."""

    @property
    def suffix(self) -> str:
        """How the shard's file is called at its end: `.jsonl.zst`."""

    @property
    def concatenates(self) -> bool:
        """Whether header + blocks + footer is the shard. If not, it is an Arrow stream to pass to `encode_whole`."""

    @property
    def holds_origins(self) -> bool:
        """Whether the shard keeps its records' origins; if not, they go to a side file (`origins_block`)."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that a reader of the dataset will find, for the manifest."""

    def header(self) -> bytes: ...

    def block(self, batch: pa.RecordBatch) -> bytes:
        """One batch; no bytes for no rows."""

    def footer(self) -> bytes: ...


def open_encoder(write: Write, schema: pa.Schema) -> Encoder:
    """The encoder for batches of this schema. The column `split` is not written: the folder says it."""
    has_record = RECORD in schema.names
    columns = canonical_schema(_without_notes(_without(_without(schema, SPLIT), RECORD)))
    if write.format == "arrow":
        return ArrowEncoder(columns)
    if write.format == "parquet":
        return ParquetEncoder(columns)
    if write.format == "webdataset":
        return TarEncoder(columns, has_record)
    codec = cast("Codec | None", write.codec)  # Write has checked it
    return JsonlEncoder(columns, has_record, write.suffix, codec)


def needs_sequence(write: Write, schema: pa.Schema) -> bool:
    """Whether a shard can only be written by who sees its records one after the other.

    Samples are counted, and neighbours with one key would become one sample.
    """
    return write.format == "webdataset" and (write.max_shard_samples is not None or KEY in schema.names)


def encode_whole(write: Write, schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: ByteSink) -> None:
    """Write a whole shard. The same bytes as header + blocks + footer, for the formats that can be joined."""
    encoder = open_encoder(write, schema)
    if isinstance(encoder, ParquetEncoder):
        write_parquet(encoder.schema, write.codec, batches, sink)
        return
    sink.write(encoder.header())
    key: str | None = None
    for batch in batches:
        if isinstance(encoder, TarEncoder):
            block, key = encoder.block_after(batch, key)
        else:
            block = encoder.block(batch)
        sink.write(block)
    sink.write(encoder.footer())


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    index = schema.get_field_index(name)
    return schema if index < 0 else schema.remove(index)


def _without_notes(schema: pa.Schema) -> pa.Schema:
    """What the plan noted of the files that were read says nothing of the shard."""
    fields = [field.with_metadata(_without_keys(field.metadata, PATH, TYPE_REASON)) for field in schema]
    return pa.schema(fields, _without_keys(schema.metadata, CARRIES_ALL))


def _without_keys(metadata: Mapping[bytes, bytes] | None, *keys: bytes) -> dict[bytes, bytes] | None:
    return {name: value for name, value in (metadata or {}).items() if name not in keys} or None
