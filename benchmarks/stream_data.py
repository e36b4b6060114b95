"""Datasets of tokens for the benchmarks of streaming, written straight to disk: no tokenizer, no pipeline."""

import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN_TYPE
from gristmill.shards.arrow_stream import STREAM_END, stream_block, stream_header
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.hugging_face import make_side_files
from gristmill.shards.manifest import Manifest, Schema, Shard, dump_manifest
from gristmill.shards.token_rows import rows_schema

DOCUMENTS_A_ROW = 4


def write_dataset(folder, *, num_shards, rows_a_shard, row_length, rows_a_batch=256, same_content=False):
    """Random ids below 50,000, four documents in each row. `same_content`: all shards are links to the first."""
    schema = canonicalize_schema(rows_schema(pa.uint16(), row_length))
    shards = []
    for number in range(num_shards):
        path = folder / "train" / "web" / f"shard-{number:05d}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        first = folder / "train" / "web" / "shard-00000.arrow"
        if same_content and number:
            path.hardlink_to(first)
        else:
            path.write_bytes(_shard(schema, number, rows_a_shard, row_length, rows_a_batch))
        shards.append(
            Shard(
                path=str(path.relative_to(folder)),
                bytes=path.stat().st_size,
                xxh3=f"{number:032x}",
                rows=rows_a_shard,
                tokens=rows_a_shard * row_length,
            )
        )
    manifest = Manifest(
        kind="tokens",
        format="arrow",
        schema=Schema.of(schema),
        splits={"train": {"web": shards}},
        row_length=row_length,
    ).seal()
    for path, content in make_side_files(manifest).items():
        (folder / path).write_bytes(content)
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest)))
    return folder


def _shard(schema, number, num_rows, row_length, rows_a_batch):
    rng = np.random.default_rng(number)
    blocks = [stream_header(schema)]
    for start in range(0, num_rows, rows_a_batch):
        count = min(rows_a_batch, num_rows - start)
        ids = pa.FixedSizeListArray.from_arrays(
            pa.array(rng.integers(0, 50_000, count * row_length, dtype=np.uint16)), row_length
        )
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * DOCUMENTS_A_ROW)
        length = pa.array(np.full(count * DOCUMENTS_A_ROW, row_length // DOCUMENTS_A_ROW, dtype=np.int32))
        nothing = [pa.array(np.zeros(count * DOCUMENTS_A_ROW, dtype=kind)) for kind in ("uint64", "uint64", "uint32")]
        origins = pa.StructArray.from_arrays(nothing, fields=list(ORIGIN_TYPE))
        arrays = [ids, pa.ListArray.from_arrays(ends, length), pa.ListArray.from_arrays(ends, origins)]
        blocks.append(stream_block(pa.RecordBatch.from_arrays(arrays, schema=schema), schema))
    return b"".join([*blocks, STREAM_END])
