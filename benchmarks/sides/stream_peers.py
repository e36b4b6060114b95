"""Peers of streaming: the same rows in each one's own format, read as its documentation says.

`python -m benchmarks.sides.stream_peers PEER FOLDER WORKERS SECONDS`, where FOLDER is a dataset of Gristmill with its
rows next to it in `rows.npy`. Each `write_*` makes the format from an array of rows, each `read_*` gives an endless
iterator of int64 tensors of 32 x row_length. litdata's folders are private: by default it empties common names under
the temporary folder.
"""

import io
import os
import sys
import tarfile
import types
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from benchmarks.sides.stream_rate import BATCH, ROW_LENGTH, print_rate


def private_folders(folder):
    """Before litdata or mosaicml-streaming is imported."""
    for name in ("cache", "data-cache", "tmp"):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(Path(folder, "cache"))
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = str(Path(folder, "data-cache"))
    os.environ["TMPDIR"] = str(Path(folder, "tmp"))


def endless(make):
    while True:
        yield from make()


def as_int64(rows):
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def write_litdata(rows, folder):
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=64 << 20, item_loader=TokensLoader(rows.shape[1]))
    for index, row in enumerate(rows):
        writer[index] = torch.from_numpy(row.copy())
    writer.done()
    writer.merge()


def read_litdata(folder, num_workers, row_length):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(str(folder), item_loader=TokensLoader(row_length), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers)
    return (batch.to(torch.int64) for batch in endless(lambda: loader))


def stub_torchvision():
    """mosaicml-streaming imports it, and nothing measured uses it: a build for this torch need not exist."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)  # transformers, which it imports too, looks at it
    sys.modules["torchvision.transforms.functional"].to_tensor = None
    sys.modules["torchvision.datasets"].VisionDataset = object


def write_mosaic(rows, folder):
    stub_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"ids": f"ndarray:uint16:{rows.shape[1]}"}) as writer:
        for row in rows:
            writer.write({"ids": row})


def read_mosaic(folder, num_workers, row_length):
    stub_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
    collate = partial(_stack, "ids")
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=collate, drop_last=True)
    return endless(lambda: loader)


def _stack(name, samples):
    return as_int64([sample[name] for sample in samples])


def write_webdataset(rows, folder):
    folder.mkdir(parents=True)
    for shard in range(8):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for index in range(shard, len(rows), 8):
                content = io.BytesIO()
                np.save(content, rows[index])
                member = tarfile.TarInfo(f"{index:08d}.npy")
                member.size = content.tell()
                content.seek(0)
                tar.addfile(member, content)


def read_webdataset(folder, num_workers, row_length):
    import webdataset as wds

    urls = sorted(map(str, folder.glob("*.tar")))
    dataset = wds.WebDataset(urls, shardshuffle=8, empty_check=False).shuffle(1000).decode().to_tuple("npy")
    dataset = dataset.batched(BATCH, collation_fn=_first, partial=False)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    return endless(lambda: loader)


def _first(samples):
    return as_int64([sample[0] for sample in samples])


def read_datasets(folder, num_workers, row_length):
    """Gristmill's own folder; whole batches by a batch sampler, which is faster than row by row."""
    import datasets

    dataset = datasets.load_from_disk(str(folder))["train"].select_columns("input_ids").with_format("numpy")
    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=num_workers, collate_fn=_widen)
    return endless(lambda: loader)


def _widen(batch):
    return torch.from_numpy(np.asarray(batch["input_ids"]).astype(np.int64))


PEERS = {
    "litdata": (write_litdata, read_litdata),
    "mosaicml-streaming": (write_mosaic, read_mosaic),
    "webdataset": (write_webdataset, read_webdataset),
    "datasets": (None, read_datasets),
}


def main():
    name, source, num_workers, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    private_folders(source / "private")
    write, read = PEERS[name]
    folder = source / name if write else source
    if write and not folder.with_suffix(".complete").exists():
        write(np.load(source / "rows.npy"), folder)
        folder.with_suffix(".complete").touch()
    print_rate(read(folder, num_workers, ROW_LENGTH), seconds)


if __name__ == "__main__":
    main()
