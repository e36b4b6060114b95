"""Parquet shards: row groups of about 32 MiB, cut by the records alone."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.records import make_origins
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.steps.write import Write


def _batches(count, rows, text="x" * 1000):
    for number in range(count):
        positions = pa.array(range(number * rows, (number + 1) * rows))
        texts = pa.array([f"{text}{position}" for position in range(rows)], pa.large_string())
        yield pa.record_batch({"origin": make_origins(1, positions), "text": texts})


def _file(write, batches, schema):
    sink = io.BytesIO()
    write_shard(write.shard_format, schema, batches, sink)
    sink.seek(0)
    return pq.ParquetFile(sink)


def test_row_groups_end_at_their_size(monkeypatch):
    monkeypatch.setattr("gristmill.shards.formats.parquet.ROW_GROUP_BYTES", 250_000)
    schema = next(_batches(1, 1)).schema
    metadata = _file(Write(format="parquet"), _batches(10, 100), schema).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [300, 300, 300, 100]


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_compression(codec):
    schema = next(_batches(1, 1)).schema
    file = _file(Write(format="parquet", compression=codec), _batches(1, 10), schema)
    found = file.metadata.row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


def test_blocks_are_a_stream_from_which_the_same_shard_is_made():
    batches = list(_batches(3, 50))
    write, schema = Write(format="parquet"), batches[0].schema
    encoder = open_encoder(write.shard_format, schema)
    assert not encoder.concatenates
    stream = encoder.header() + b"".join(map(encoder.block, batches)) + encoder.footer()
    from_blocks, direct = io.BytesIO(), io.BytesIO()
    write_shard(write.shard_format, schema, pa.ipc.open_stream(stream), from_blocks)
    write_shard(write.shard_format, schema, batches, direct)
    assert from_blocks.getvalue() == direct.getvalue()
