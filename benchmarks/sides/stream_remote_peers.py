"""Peers of remote streaming: one epoch from the same store, each in its own format, through an empty local cache.

`python -m benchmarks.sides.stream_remote_peers PEER FOLDER WORKERS CACHE`. The format is written and uploaded when a
peer first runs, before its clock starts.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

from benchmarks.sides.stream_peers import PEERS, _stack, private_folders, stub_torchvision
from benchmarks.sides.stream_rate import BATCH, ROW_LENGTH

BUCKET = "bench"


def upload(folder, name):
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    marker = f"{name}.complete"
    if "Contents" in client.list_objects_v2(Bucket=BUCKET, Prefix=marker):
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.put_object(Bucket=BUCKET, Key=f"{name}/{path.relative_to(folder)}", Body=path.read_bytes())
    client.put_object(Bucket=BUCKET, Key=marker, Body=b"")


def open_litdata(name, num_workers, cache):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the store of this contest has no certificate
    dataset = StreamingDataset(
        f"s3://{BUCKET}/{name}",
        cache_dir=str(cache),
        item_loader=TokensLoader(ROW_LENGTH),
        shuffle=True,
        drop_last=False,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers)


def open_mosaic(name, num_workers, cache):
    stub_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(remote=f"s3://{BUCKET}/{name}", local=str(cache), shuffle=True, batch_size=BATCH)
    return DataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=partial(_stack, "ids"))


OPEN = {"litdata": open_litdata, "mosaicml-streaming": open_mosaic}


def main():
    peer, source, num_workers, cache = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4], "cache")
    private_folders(Path(sys.argv[4], "private"))
    folder = source / peer
    if not folder.with_suffix(".complete").exists():
        PEERS[peer][0](np.load(source / "rows.npy"), folder)
        folder.with_suffix(".complete").touch()
    upload(folder, peer)
    start = time.perf_counter()
    num_rows = sum(len(batch) for batch in OPEN[peer](peer, num_workers, cache))
    print(json.dumps({"inner": time.perf_counter() - start, "units": num_rows}), flush=True)


if __name__ == "__main__":
    main()
