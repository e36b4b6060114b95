"""Gristmill's loaders and the bare loops that bound them: `python -m benchmarks.sides.stream_ours SIDE FOLDER SECONDS`.

Each side is an iterator of int64 tensors of 32 rows, shuffled, from a warm page cache. `first` prints how long the
first batch of a dataset of 10,000 shards takes, a batch at row 10^9, and what memory is used when all were touched.
"""

import json
import sys
import time
from pathlib import Path

import numba
import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.sides.stream_rate import BATCH, print_rate
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchDataset, TorchLoader

ONE = ("input_ids",)
THREE = ("input_ids", "labels", "position_ids")


def loader(folder, num_threads, fields=ONE, **options):
    stream = Stream(folder, collate=Collate(fields=fields))
    made = TorchLoader(stream, BATCH, num_threads=num_threads, pin_memory=False, **options)
    return (batch["input_ids"] for batch in made)


def dataset(folder, num_workers):
    stream = Stream(folder, collate=Collate(fields=ONE))
    made = DataLoader(TorchDataset(stream, BATCH), batch_size=None, num_workers=num_workers)
    return (batch["input_ids"] for batch in made)


def numpy_gather(folder):
    """Rows at random places of one mapped array, widened: the minimum that a loader has to do."""
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    rng = np.random.default_rng(0)
    while True:
        for places in rng.permutation(len(rows))[: len(rows) // BATCH * BATCH].reshape(-1, BATCH):
            yield torch.from_numpy(rows[places].astype(np.int64))


@numba.njit(nogil=True)
def _three(rows, places, document, ids, labels, positions):
    for number in range(len(places)):
        row = rows[places[number]]
        for place in range(len(row)):
            ids[number, place] = row[place]
            labels[number, place] = row[place]
            positions[number, place] = place % document


def bare_numba(folder):
    """Like `numpy_gather` with labels and positions, in the plainest loop."""
    rows = np.load(folder / "rows.npy", mmap_mode="r").view(np.ndarray)
    rng = np.random.default_rng(0)
    while True:
        for places in rng.permutation(len(rows))[: len(rows) // BATCH * BATCH].reshape(-1, BATCH):
            arrays = [np.empty((BATCH, rows.shape[1]), dtype=np.int64) for _ in range(3)]
            _three(rows, places, rows.shape[1] // 4, *arrays)
            yield torch.from_numpy(arrays[0])


def print_first_batches(folder):
    before = anonymous_bytes()
    start = time.perf_counter()
    stream = Stream(folder)
    stream.batch(0, BATCH)
    cold = time.perf_counter() - start
    fresh, far = (min(time_first_batch(folder, row) for _ in range(5)) for row in (0, 10**9))
    for row in range(0, 60_000, 1000):
        stream.rows(row, row + 1000)
    memory = (anonymous_bytes() - before) / 2**20
    print(json.dumps({"first_s": cold, "again_s": fresh, "resumed_s": far, "memory_mib": memory}))


def time_first_batch(folder, row):
    start = time.perf_counter()
    stream = Stream(folder)
    stream.load_state_dict(stream.state_dict(row=row))
    stream.batch(0, BATCH)
    return time.perf_counter() - start


def anonymous_bytes():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


SIDES = {
    "loader": lambda folder: loader(folder, 0),
    "loader-1-thread": lambda folder: loader(folder, 1),
    "data-loader": lambda folder: dataset(folder, 2),
    "three": lambda folder: loader(folder, 0, THREE),
    "numpy": numpy_gather,
    "numba": bare_numba,
}


if __name__ == "__main__":
    side, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    if side == "first":
        print_first_batches(folder)
    else:
        print_rate(SIDES[side](folder), seconds)
