"""Rows from an object store on this machine: `python -m benchmarks.sides.stream_remote SIDE DATA CACHE`.

`cold` reads one epoch with shuffled blocks through an empty cache. `bare` only downloads the same bytes to the disk,
`memory` not even there. `warm` and `local` read for two seconds after everything was touched once. `full` reads rows in
full shuffle through a cache of a tenth. `first` opens a dataset of 10,000 shards and makes the batch at row 10^9.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.sides.stream_rate import BATCH, print_rate
from gristmill.storage.locations import StorePath
from gristmill.stream import Cache, Collate, Stream
from gristmill.stream.torch import TorchLoader

ONE = Collate(fields=("input_ids",))
WINDOW = {"blocks": 16}


def open_stream(data, cache, **options):
    return Stream(data, cache=cache, collate=ONE, **options)


def read_cold(data, cache):
    # Kernels are loaded, as peers have imported their libraries.
    open_stream(data, Path(cache, "other"), shuffle=WINDOW).rows(0, 1)
    start = time.perf_counter()
    stream = open_stream(data, Path(cache, "blocks"), epochs=1, shuffle=WINDOW)
    num_rows = sum(int(batch.row_mask.sum()) for batch in TorchLoader(stream, BATCH, num_threads=0, pin_memory=False))
    seconds = time.perf_counter() - start
    blocks = stream.reader.table.blocks
    print_facts(seconds, num_rows, read_twice=blocks.cache.fetched_bytes / int(blocks.bytes.sum()))


def download_only(data, cache, target=None):
    stream = open_stream(data, Path(cache, "other"))
    stream.rows(0, 1)  # the connection is open, as it is for `cold`
    blocks = stream.reader.table.blocks
    start = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        num_bytes = sum(pool.map(partial(fetch, blocks, target), range(len(blocks.rows))))
    print_facts(time.perf_counter() - start, int(blocks.rows.sum()), megabytes=num_bytes / 1e6)


def download_files(data, cache):
    Path(cache, "files").mkdir(parents=True)
    download_only(data, cache, Path(cache, "files"))


def fetch(blocks, target, number):
    shard = blocks.shards[blocks.shard_of[number]]
    store, key = StorePath(shard.path).open_store()
    start = int(blocks.offsets[number])
    content = store.read(key, start, start + int(blocks.bytes[number]))
    if target is not None:
        (target / str(number)).write_bytes(content)
    return len(content)


def read_again(data, cache):
    stream = open_stream(data, cache)
    for row in range(0, stream.lanes[0].rows, BATCH):  # every block was opened and verified
        stream.rows(row, row + BATCH)
    loader = TorchLoader(stream, BATCH, num_threads=0, pin_memory=False)
    print_rate((batch["input_ids"] for batch in loader), 2)


def read_full(data, cache):
    stream = open_stream(data, cache)
    total = int(stream.reader.table.blocks.bytes.sum())
    stream = open_stream(data, cache, cache=Cache(max_bytes=total // 10))
    start = time.perf_counter()
    num_rows = 512
    for row in range(0, num_rows, BATCH):
        stream.rows(row, row + BATCH)
    kilobytes = stream.reader.table.blocks.cache.fetched_bytes / num_rows / 1e3
    print_facts(time.perf_counter() - start, num_rows, kilobytes_a_row=kilobytes)


def read_first(data, cache):
    stream = open_stream(data, cache)
    state = stream.state_dict(row=10**9)
    stream.rows(0, BATCH)  # kernels are loaded
    start = time.perf_counter()
    stream = open_stream(data, Path(cache, "other"))
    stream.load_state_dict(state)
    next(stream.batches(BATCH))
    print_facts(time.perf_counter() - start, 1)


def print_facts(seconds, units, **facts):
    print(json.dumps({"inner": seconds, "units": units, **facts}), flush=True)


SIDES = {
    "cold": read_cold,
    "bare": download_files,
    "memory": download_only,
    "warm": read_again,
    "local": read_again,
    "full": read_full,
    "first": read_first,
}


if __name__ == "__main__":
    SIDES[sys.argv[1]](sys.argv[2], sys.argv[3])
