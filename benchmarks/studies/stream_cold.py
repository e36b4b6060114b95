"""Shuffled rows from a cold disk: rows a second and bytes read, for each way to map and request them.

    python benchmarks/studies/stream_cold.py /path/on/the/disk [--gigabytes 2.7]

Makes a dataset of rows of 2,048 uint16 there, drops it from the page cache before each side, and reads 4,000 shuffled
rows in a fresh process. Sides: Arrow's mapping as it is, ours for random access, ours with rows requested ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

SIDES = ("arrow mapping", "random access", "random access, asked ahead")
ROW_LENGTH, ROWS_A_BLOCK, BLOCKS_A_SHARD = 2048, 1024, 16
NUM_ROWS = 4000


def make_dataset(folder: Path, num_shards: int) -> None:
    from gristmill.core.books import Account
    from gristmill.shards.canonical import STREAM_END, canonicalize_schema, stream_block, stream_header
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.manifest_file import dump_manifest
    from gristmill.shards.stored_files import Schema, Shard
    from gristmill.shards.token_rows import rows_schema
    from gristmill.storage.files import compute_file_checksum

    schema = canonicalize_schema(rows_schema(pa.uint16(), ROW_LENGTH))
    rng, shards = np.random.default_rng(0), []
    (folder / "train/web").mkdir(parents=True)
    ends = pa.array(np.arange(ROWS_A_BLOCK + 1, dtype=np.int32))
    lengths = pa.array(np.full(ROWS_A_BLOCK, ROW_LENGTH, np.int32))
    origin = [
        np.zeros(ROWS_A_BLOCK, np.uint64),
        np.arange(ROWS_A_BLOCK, dtype=np.uint64),
        np.zeros(ROWS_A_BLOCK, np.uint32),
    ]
    origins = pa.StructArray.from_arrays(list(map(pa.array, origin)), names=["file", "position", "part"])
    for number in range(num_shards):
        path = f"train/web/shard-{number:05d}.arrow"
        with (folder / path).open("wb") as file:
            file.write(stream_header(schema))
            for _ in range(BLOCKS_A_SHARD):
                ids = pa.array(rng.integers(0, 60_000, ROWS_A_BLOCK * ROW_LENGTH, dtype=np.uint16))
                columns = {
                    "input_ids": pa.FixedSizeListArray.from_arrays(ids, ROW_LENGTH),
                    "lengths": pa.ListArray.from_arrays(ends, lengths),
                    "origins": pa.ListArray.from_arrays(ends, origins),
                }
                batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema.names)
                file.write(stream_block(batch, schema))
            file.write(STREAM_END)
            os.fsync(file.fileno())
        rows, size = ROWS_A_BLOCK * BLOCKS_A_SHARD, (folder / path).stat().st_size
        checksum = compute_file_checksum(str(folder / path))
        shards.append(Shard(path=path, bytes=size, xxh3=checksum, rows=rows, tokens=rows * ROW_LENGTH))
    manifest = Manifest(
        kind="tokens",
        format="arrow",
        schema=Schema.of(schema),
        splits={"train": {"web": shards}},
        row_length=ROW_LENGTH,
        books={"web": [Account("read")]},
    ).seal()
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest)))


def read_rows(folder: Path, side: str, batch_size: int, seed: int) -> dict[str, float]:
    """Read rows in this process, with the dataset dropped from the page cache."""
    from gristmill.stream import Stream, mapped_memory
    from gristmill.stream.rows import row_table

    def arrow_mapping(path: str, num_bytes: int, *, at_random: bool) -> pa.Buffer:
        with pa.memory_map(path) as file:
            return file.read_buffer(num_bytes)

    if side == "arrow mapping":
        row_table.map_file = arrow_mapping
    if side != SIDES[-1]:
        mapped_memory.ReadAhead.note = lambda *_: False  # type: ignore[method-assign,assignment]
        row_table.request_pages = lambda *_: None
    for path in folder.rglob("*.arrow"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    stream = Stream(folder, seed=seed)
    stream.rows(0, 1)  # compiles
    before, start, rows = _read_bytes(), time.perf_counter(), 0
    for _ in stream.batches(batch_size):
        rows += batch_size
        if rows >= NUM_ROWS:
            break
    seconds = time.perf_counter() - start
    return {"rows_a_second": rows / seconds, "read": (_read_bytes() - before) / (rows * ROW_LENGTH * 2)}


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.7)
    parser.add_argument("--side")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = options.folder / "stream-cold"
    if options.side:
        print(json.dumps(read_rows(data, options.side, options.batch, options.seed)))
        return
    if not (data / "manifest.json").exists():
        make_dataset(data, max(1, round(options.gigabytes * 1e9 / (ROWS_A_BLOCK * BLOCKS_A_SHARD * ROW_LENGTH * 2))))
    for batch_size in (8, 32, 128):
        base = None
        for side in SIDES:
            arguments = ["--side", side, "--batch", str(batch_size)]
            runs = []
            for seed in range(3):
                command = [sys.executable, __file__, str(options.folder), *arguments, "--seed", str(seed)]
                runs.append(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
            found = sorted(runs, key=lambda run: run["rows_a_second"])[1]
            base = base or found["rows_a_second"]
            print(
                f"batch {batch_size:4d}, {side:28s} {found['rows_a_second']:8,.0f} rows/s "
                f"({found['rows_a_second'] / base:4.1f} times), {found['read']:6.1f} times the useful bytes"
            )


if __name__ == "__main__":
    main()
