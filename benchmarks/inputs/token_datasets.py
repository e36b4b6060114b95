"""Datasets of tokens for the contests of streaming, written straight to disk: no tokenizer, no pipeline."""

import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN_TYPE
from gristmill.shards.arrow_stream import STREAM_END, read_mapped_batches, stream_block, stream_header
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.hugging_face import make_side_files
from gristmill.shards.manifest import FORMAT_VERSION, Manifest, Schema, Shard, dump_manifest
from gristmill.shards.token_rows import rows_schema

DOCUMENTS_A_ROW = 4


def shuffled_rows(setting, *, num_shards, rows_a_shard, row_length):
    """Return a dataset with its rows beside it as one array, for peers that cannot read ours."""
    folder = setting.folder / "inputs" / f"tokens-{num_shards}-{rows_a_shard:g}-v{FORMAT_VERSION}"
    if not (folder / "rows.npy").exists():
        write_dataset(folder, num_shards=num_shards, rows_a_shard=int(rows_a_shard), row_length=row_length)
        batches = (batch for path in sorted(folder.rglob("*.arrow")) for batch in read_mapped_batches(path))
        rows = [batch.column("input_ids").values.to_numpy().reshape(-1, row_length) for batch in batches]
        np.save(folder / "rows.npy", np.concatenate(rows))
    return folder


def many_shards(setting, num_shards):
    """Return a dataset of many small shards, all links to one file."""
    folder = setting.folder / "inputs" / f"shards-{num_shards}-v{FORMAT_VERSION}"
    if not (folder / "manifest.json").exists():
        write_dataset(
            folder, num_shards=num_shards, rows_a_shard=64, row_length=128, rows_a_batch=16, same_content=True
        )
    return folder


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
