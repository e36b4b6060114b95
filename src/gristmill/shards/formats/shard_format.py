"""The table of shard formats: which encoder and which reader each one has.

| format | a row at random costs | memory |
|---|---|---|
| arrow | microseconds: the file is mapped | the row |
| parquet | decoding its row group, unless it is the one read last | one row group, about 32 MiB |
| jsonl | reading on from the row read last; an earlier row, from the start | 1 MiB, or one record |
| webdataset | one seek, by an index that the first such row builds: 9 µs a member | 33 bytes a member and its name |

In order, every format is read once from front to back. A format is imported when it is first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from gristmill.core.checks import check_choice
from gristmill.core.media import MEMBER, collect_features, is_bytes
from gristmill.core.records import CARRIES_ALL, ORIGIN, PATH, RECORD, SPLIT, TYPE_REASON
from gristmill.shards.canonical import canonicalize_schema, read_mapped_batches
from gristmill.shards.formats.arrow import ArrowEncoder, ArrowShard, TokenShard
from gristmill.shards.formats.base import KeyedEncoder
from gristmill.shards.token_rows import ORIGINS, ROW_DATASETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from gristmill.shards.formats.base import ByteSink, Encoder, ShardReader
    from gristmill.storage.codecs import Codec

COMPRESSIONS: dict[str, tuple[str, ...]] = {
    "jsonl": ("none", "gzip", "zstd", "bz2", "xz", "lz4"),
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "arrow": ("none",),
    "webdataset": ("none",),
}
"""The compressions of each format, its default first."""
FORMATS = tuple(COMPRESSIONS)
_CODEC_SUFFIXES = {None: "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "xz": ".xz", "lz4": ".lz4"}


@dataclass(frozen=True, slots=True)
class ShardFormat:
    """A format of shards, with its compression."""

    name: str
    codec: str | None = None
    """None: not compressed."""

    @classmethod
    def of(cls, name: str, compression: str | None = None) -> ShardFormat:
        """Make a format from names that were checked; None is the format's default compression.

        >>> ShardFormat.of("jsonl", "zstd").suffix, ShardFormat.of("parquet").codec
        ('.jsonl.zst', 'zstd')
        """
        codec = compression or COMPRESSIONS[name][0]
        return cls(name, None if codec == "none" else codec)

    @property
    def suffix(self) -> str:
        """The suffix of the files' names."""
        if self.name == "jsonl":
            return ".jsonl" + _CODEC_SUFFIXES[self.codec]
        return ".tar" if self.name == "webdataset" else f".{self.name}"

    @property
    def keeps_record(self) -> bool:
        """Whether records from JSON are written as they were read; if not, their columns are written."""
        return self.name in {"jsonl", "webdataset"}


def open_encoder(format: ShardFormat, schema: pa.Schema) -> Encoder:
    """Make the encoder for batches of this schema. The column `split` is not written: the folder says it."""
    has_record = RECORD in schema.names
    columns = canonicalize_schema(_without_plan_notes(_without_column(_without_column(schema, SPLIT), RECORD)))
    columns = collect_features(columns)
    if format.name != "webdataset":
        columns = _without_text_members(columns)
    if format.name == "arrow":
        return ArrowEncoder(columns)
    if format.name == "parquet":
        from gristmill.shards.formats.parquet import ParquetEncoder  # noqa: PLC0415

        return ParquetEncoder(columns)
    if format.name == "webdataset":
        from gristmill.shards.formats.tar import TarEncoder  # noqa: PLC0415
        from gristmill.shards.formats.tar_members import MemberLayout  # noqa: PLC0415

        return TarEncoder(columns, has_record, layout=None if has_record else MemberLayout.find(columns))
    from gristmill.shards.formats.jsonl import JsonlEncoder  # noqa: PLC0415

    return JsonlEncoder(columns, has_record, format.suffix, cast("Codec | None", format.codec))


def write_shard(
    format: ShardFormat,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    sink: ByteSink,
    row_group_rows: int | None = None,
) -> None:
    """Write a whole shard: the same bytes as header + blocks + footer, in the formats that concatenate."""
    encoder = open_encoder(format, schema)
    if format.name == "parquet":
        from gristmill.shards.formats.parquet import write_parquet  # noqa: PLC0415

        write_parquet(encoder.schema, format.codec, batches, sink, row_group_rows)
        return
    sink.write(encoder.header())
    key: str | None = None
    for batch in batches:
        if isinstance(encoder, KeyedEncoder):
            block, key = encoder.block_after(batch, key)
        else:
            block = encoder.block(batch)
        sink.write(block)
    sink.write(encoder.footer())


def open_shard(path: Path, format: str, kind: str = "documents", schema: pa.Schema | None = None) -> ShardReader:
    """Open a shard of a dataset of this format and kind; `schema` is checked where it is Arrow or Parquet."""
    if kind in ROW_DATASETS:
        return TokenShard(path, schema)
    check_choice("format", format, FORMATS)
    if format == "arrow":
        return ArrowShard(path, schema)
    if format == "parquet":
        from gristmill.shards.formats.parquet import ParquetShard  # noqa: PLC0415

        return ParquetShard(path, schema)
    if format == "jsonl":
        from gristmill.shards.formats.jsonl import JsonlShard  # noqa: PLC0415

        return JsonlShard(path)
    from gristmill.shards.formats.tar import TarShard  # noqa: PLC0415
    from gristmill.shards.formats.tar_members import MemberLayout  # noqa: PLC0415

    return TarShard(path, None if schema is None else MemberLayout.find(schema))


def open_origins(path: Path, format: str, kind: str = "documents") -> Iterator[pa.StructArray]:
    """Read the origins in a shard that holds them, or in a side file (`arrow`)."""
    if kind in ROW_DATASETS:
        return (batch.column(ORIGINS).flatten() for batch in read_mapped_batches(path))
    if format == "parquet":
        import pyarrow.parquet as pq  # noqa: PLC0415

        batches = pq.ParquetFile(str(path), buffer_size=1 << 20).iter_batches(columns=[ORIGIN])
    else:
        batches = read_mapped_batches(path)
    return (batch.column(ORIGIN) for batch in batches)


def _without_column(schema: pa.Schema, name: str) -> pa.Schema:
    index = schema.get_field_index(name)
    return schema if index < 0 else schema.remove(index)


def _without_plan_notes(schema: pa.Schema) -> pa.Schema:
    """Remove what the plan noted about the input files: it says nothing about the shard."""
    fields = [field.with_metadata(_without_keys(field.metadata, PATH, TYPE_REASON)) for field in schema]
    return pa.schema(fields, _without_keys(schema.metadata, CARRIES_ALL))


def _without_text_members(schema: pa.Schema) -> pa.Schema:
    """Keep the extensions of columns of bytes, which tell images from other bytes. Other columns need none."""
    fields = [
        field if is_bytes(field.type) else field.with_metadata(_without_keys(field.metadata, MEMBER))
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def _without_keys(metadata: Mapping[bytes, bytes] | None, *keys: bytes) -> dict[bytes, bytes] | None:
    return {name: value for name, value in (metadata or {}).items() if name not in keys} or None
