"""Start, resume, memory and ranks of streaming, each in a fresh process."""

import json
import subprocess
import sys
import time
from pathlib import Path

import stream_ours
import torch  # noqa: F401  (memory is counted from here)
from stream_data import write_dataset

from gristmill.stream import Collate, Stream

NUM_RANKS = 8


def first(folder, seconds):
    """Of 10,000 shards: the first batch, a batch at row 10^9, and the memory when all shards were touched."""
    folder = folder / "many"
    if not folder.exists():
        write_dataset(folder, num_shards=10_000, rows_a_shard=64, row_length=128, rows_a_batch=16, same_content=True)
    before = anonymous_bytes()
    start = time.perf_counter()
    stream = Stream(folder)
    stream.batch(0, 32)
    cold = time.perf_counter() - start
    fresh = min(timed(folder, 0) for _ in range(5))
    far = min(timed(folder, 10**9) for _ in range(5))
    for row in range(0, 60_000, 1000):
        stream.rows(row, row + 1000)
    touched = len(stream.reader.table._mapped)
    return {
        "first batch of 10,000 shards, numba loaded too (ms)": round(cold * 1e3),
        "the same, numba loaded before (ms)": round(fresh * 1e3),
        "resumed at row 10^9 (ms)": round(far * 1e3),
        f"memory beyond import torch, {touched:,} shards touched (MiB)": round((anonymous_bytes() - before) / 2**20),
    }


def timed(folder, row):
    start = time.perf_counter()
    stream = Stream(folder)
    stream.load_state_dict(stream.state_dict(row=row))
    stream.batch(0, 32)
    return time.perf_counter() - start


def anonymous_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def ranks(folder, seconds):
    """Rows a second of 8 ranks together, each a process."""
    command = [sys.executable, "-W", "ignore", __file__, str(folder / "out"), str(time.time() + 25), str(seconds)]
    processes = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(NUM_RANKS)]
    rates = [json.loads(process.communicate()[0]) for process in processes]
    return {"8 ranks as 8 processes, all together (rows/s)": round(sum(rates))}


def one_rank(folder, start, seconds, rank):
    batches = Stream(folder, collate=Collate(fields=stream_ours.ONE)).batches(32, rank, NUM_RANKS)
    for _ in range(100):
        next(batches)
    time.sleep(max(start - time.time(), 0))
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(batches)
        count += 1
    print(count * 32 / (time.perf_counter() - begun))


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
