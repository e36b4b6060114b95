"""Export against a plain copy of the same ids, in one run: `python benchmarks/export.py [--shards N] [--workers N]`.

The copy is one process that reads each shard's bytes and writes them to one file, and syncs it: no export can be
much faster on one disk. Memory is the peak of anonymous memory of a process that exports alone (mapped input is the
system's to drop, and is not counted).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import gristmill as gm
from gristmill.core.records import ORIGIN_TYPE
from gristmill.shards.canonical import STREAM_END, canonicalize_schema, stream_block, stream_header
from gristmill.shards.manifest import Manifest
from gristmill.shards.manifest_file import dump_manifest
from gristmill.shards.stored_files import Schema, Shard

ROW_LENGTH = 2048
ROWS_A_BATCH = 2048  # 8 MiB
BATCHES_A_SHARD = 8

MEMORY = """
import sys, threading, time
import gristmill as gm
most = 0
def watch():
    global most
    while True:
        status = open("/proc/self/status").read()
        most = max(most, int(status.split("RssAnon:")[1].split()[0]))
        time.sleep(0.005)
gm.export; import gristmill.pipeline.jobs.export
before = int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0])
threading.Thread(target=watch, daemon=True).start()
gm.export(sys.argv[1], to=sys.argv[2], path=sys.argv[3], backend="serial", progress=False, overwrite=True)
print((most - before) // 1024)
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packed = write_dataset(folder / "packed", options.shards, ROW_LENGTH)
        documents = write_dataset(folder / "documents", options.shards, None)
        num_bytes = sum(path.stat().st_size for path in documents.rglob("*.arrow"))
        print(f"{options.shards} shards, {num_bytes / 1e6:.0f} MB, {options.workers} workers")
        for _ in range(options.repeats):
            report("copy", lambda: copy(documents, folder / "copy"), num_bytes)
            for to, dataset in [("megatron", documents), ("nanogpt", documents), ("numpy", packed)]:
                start = {"to": to, "path": folder / "x" / to, "overwrite": True, "progress": False}
                report(to, lambda: gm.export(dataset, workers=options.workers, **start), num_bytes)  # noqa: B023
        for to, dataset in [("megatron", documents), ("numpy", packed), ("parquet", packed), ("jsonl", documents)]:
            command = [sys.executable, "-c", MEMORY, str(dataset), to, str(folder / "x" / to)]
            print(f"{to:10} at most {subprocess.check_output(command, text=True).strip()} MiB more memory, alone")


def report(name, run, num_bytes):
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    print(f"{name:10} {seconds:6.2f} s  {num_bytes / seconds / 1e6:7.0f} MB of shards a second")


def copy(dataset, target):
    with target.open("wb") as out:
        for path in sorted(dataset.rglob("*.arrow")):
            with path.open("rb") as shard:
                shutil.copyfileobj(shard, out, 8 << 20)
        os.fsync(out.fileno())


def write_dataset(folder, num_shards, row_length):
    size = -1 if row_length is None else row_length
    schema = canonicalize_schema(
        pa.schema(
            [
                ("input_ids", pa.list_(pa.uint16(), size)),
                ("lengths", pa.list_(pa.int32())),
                ("origins", pa.list_(ORIGIN_TYPE)),
            ]
        )
    )
    shards = []
    generator = np.random.default_rng(1)
    for number in range(num_shards):
        path = folder / f"train/web/shard-{number:05d}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(stream_header(schema))
            for _ in range(BATCHES_A_SHARD):
                file.write(stream_block(batch_of(generator, schema, row_length), schema))
            file.write(STREAM_END)
        rows = BATCHES_A_SHARD * ROWS_A_BATCH
        shards.append(Shard(path=f"train/web/{path.name}", bytes=path.stat().st_size, xxh3="", rows=rows))
    splits = {"train": {"web": shards}}
    manifest = Manifest(kind="tokens", format="arrow", schema=Schema.of(schema), splits=splits)
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest.seal())))
    return folder


def batch_of(generator, schema, row_length):
    ids = pa.array(generator.integers(0, 50_000, ROWS_A_BATCH * ROW_LENGTH, dtype=np.uint16))
    offsets = pa.array(np.arange(ROWS_A_BATCH + 1, dtype=np.int32))
    lengths = pa.array(np.full(ROWS_A_BATCH, ROW_LENGTH, dtype=np.int32))
    origin = pa.array([{"file": 1, "position": n, "part": 0} for n in range(ROWS_A_BATCH)], ORIGIN_TYPE)
    if row_length is None:
        ends = np.arange(ROWS_A_BATCH + 1, dtype=np.int32) * ROW_LENGTH
        rows = pa.ListArray.from_arrays(pa.array(ends), ids)
    else:
        rows = pa.FixedSizeListArray.from_arrays(ids, row_length)
    arrays = [rows, pa.ListArray.from_arrays(offsets, lengths), pa.ListArray.from_arrays(offsets, origin)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


if __name__ == "__main__":
    main()
