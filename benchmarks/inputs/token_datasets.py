"""Datasets of tokens for the contests of streaming, written straight to disk: no tokenizer, no pipeline."""

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN_TYPE
from gristmill.shards.block_index import BlockIndexWriter, scan_blocks
from gristmill.shards.canonical import STREAM_END, canonicalize_schema, read_mapped_batches, stream_block, stream_header
from gristmill.shards.derived_files import make_side_files
from gristmill.shards.manifest import FORMAT_VERSION, Manifest
from gristmill.shards.manifest_file import dump_manifest
from gristmill.shards.stored_files import InputFile, Schema, Shard
from gristmill.shards.token_rows import rows_schema
from gristmill.storage.files import compute_file_checksum

DOCUMENTS_A_ROW = 4


def shuffled_rows(setting, *, num_shards, rows_a_shard, row_length):
    """Return a dataset with its rows next to it as one array, for peers that cannot read ours."""
    folder = setting.folder / "inputs" / f"tokens-{num_shards}-{rows_a_shard:g}-v{FORMAT_VERSION}"
    if not (folder / "rows.npy").exists():
        write_dataset(folder, num_shards=num_shards, rows_a_shard=int(rows_a_shard), row_length=row_length)
        batches = (batch for path in sorted(folder.rglob("*.arrow")) for batch in read_mapped_batches(path))
        rows = [batch.column("input_ids").values.to_numpy().reshape(-1, row_length) for batch in batches]
        np.save(folder / "rows.npy", np.concatenate(rows))
    return folder


def many_shards(setting, num_shards, *, has_index=False):
    """Return a dataset of many small shards: all links to one file, or all different and with an index."""
    name = "different" if has_index else "shards"
    folder = setting.folder / "inputs" / f"{name}-{num_shards}-v{FORMAT_VERSION}"
    if not (folder / "manifest.json").exists():
        write_dataset(
            folder,
            num_shards=num_shards,
            rows_a_shard=64,
            row_length=128,
            rows_a_batch=16,
            same_content=not has_index,  # blocks of equal content would be fetched once
            has_index=has_index,
        )
    return folder


def many_rows(setting, *, num_shards, rows_a_shard):
    """Return a dataset of very many short rows, whose shards are links to one file."""
    folder = setting.folder / "inputs" / f"named-rows-{num_shards}-{rows_a_shard}-v{FORMAT_VERSION}"
    if not (folder / "manifest.json").exists():
        write_dataset(
            folder,
            num_shards=num_shards,
            rows_a_shard=rows_a_shard,
            row_length=16,
            rows_a_batch=4096,
            same_content=True,
        )
    return folder


def indexed_rows(setting, *, num_shards, rows_a_shard, row_length):
    """Return a dataset with blocks of 4 MiB and their index, as runs write it, and its rows as one array."""
    folder = setting.folder / "inputs" / f"indexed-rows-{num_shards}-{rows_a_shard:g}-v{FORMAT_VERSION}"
    if not (folder / "rows.npy").exists():
        write_dataset(
            folder,
            num_shards=num_shards,
            rows_a_shard=int(rows_a_shard),
            row_length=row_length,
            rows_a_batch=(4 << 20) // (2 * row_length),
            has_index=True,
        )
        batches = (batch for path in sorted(folder.glob("train/*/*.arrow")) for batch in read_mapped_batches(path))
        rows = [batch.column("input_ids").values.to_numpy().reshape(-1, row_length) for batch in batches]
        np.save(folder / "rows.npy", np.concatenate(rows))
    return folder


def write_dataset(
    folder, *, num_shards, rows_a_shard, row_length, rows_a_batch=256, same_content=False, has_index=False
):
    """Random ids below 50,000, four documents in each row. `same_content`: all shards are links to the first."""
    schema = canonicalize_schema(rows_schema(pa.uint16(), row_length))
    shards, blocks = [], []
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
                xxh3=compute_file_checksum(path) if has_index else f"{number:032x}",
                rows=rows_a_shard,
                tokens=rows_a_shard * row_length,
            )
        )
        if has_index:
            blocks.append(scan_blocks(path, shards[-1], rows_a_shard, "arrow"))
    manifest = Manifest(
        kind="tokens",
        format="arrow",
        schema=Schema.of(schema),
        splits={"train": {"web": shards}},
        row_length=row_length,
        files={"0" * 16: InputFile(source="web", path="web.jsonl", relative="web.jsonl", bytes=0, version="")},
    ).seal()
    if has_index:
        with BlockIndexWriter(folder, "index", "bench") as writer:
            for shard_blocks in blocks:
                writer.add("train", "web", shard_blocks)
            manifest = msgspec.structs.replace(manifest, index=writer.commit())
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
