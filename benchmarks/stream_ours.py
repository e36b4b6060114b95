"""The measured loaders of Gristmill, and the bare loops that bound them: iterators of tensors of 32 rows."""

import numba
import numpy as np
import torch
from torch.utils.data import DataLoader

from gristmill.shards.arrow_stream import read_mapped_batches
from gristmill.shards.manifest import load_manifest
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchDataset, TorchLoader

BATCH = 32
ONE = ("input_ids",)
THREE = ("input_ids", "labels", "position_ids")


def stored_rows(folder):
    """All rows as one array in memory."""
    parts = []
    for _, _, shard in load_manifest(folder).shards():
        for batch in read_mapped_batches(folder / shard.path):
            ids = batch.column("input_ids")
            parts.append(ids.values.to_numpy().reshape(-1, ids.type.list_size))
    return np.concatenate(parts)


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
    path = folder.parent / "rows.npy"
    if not path.exists():
        np.save(path, stored_rows(folder))
    rows = np.load(path, mmap_mode="r")
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
    path = folder.parent / "rows.npy"
    if not path.exists():
        np.save(path, stored_rows(folder))
    rows = np.load(path, mmap_mode="r").view(np.ndarray)
    rng = np.random.default_rng(0)
    while True:
        for places in rng.permutation(len(rows))[: len(rows) // BATCH * BATCH].reshape(-1, BATCH):
            arrays = [np.empty((BATCH, rows.shape[1]), dtype=np.int64) for _ in range(3)]
            _three(rows, places, rows.shape[1] // 4, *arrays)
            yield torch.from_numpy(arrays[0])
