"""Streams from a store for minutes: awkward sizes, failing requests, a small cache, killed jobs."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import xxhash
from gristmill_testing.faulty_proxy import BUSY, CUT, RESET, FaultyProxy
from gristmill_testing.foreign_files import upload
from gristmill_testing.streams import ROW_LENGTH, packed_rows
from gristmill_testing.token_datasets import write_tokens
from torch.utils.data import DataLoader

from gristmill.order import Permutation
from gristmill.order.permutation import make_epoch_key
from gristmill.shards.manifest_file import load_manifest
from gristmill.storage.stores import retries
from gristmill.storage.stores.open_store import forget_stores
from gristmill.stream import Cache, Stream
from gristmill.stream.torch import TorchDataset

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

JOB = """
import json, sys
from gristmill.stream import Cache, Stream
url, cache, cache_bytes, rank, num_rows = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
stream = Stream(url, seed=7, cache=Cache(cache, max_bytes=cache_bytes), rows=num_rows, shuffle={"blocks": 4})
print("begun", flush=True)
print(json.dumps([batch["input_ids"].tolist() for batch in stream.batches(4, rank, 8)]))
"""


def fail_some(line, number):
    return (RESET, CUT, BUSY)[number // 7 % 3] if number % 7 == 0 else None


def write_rows(folder, num_rows):
    """Rows that begin with their own number, in three shards of blocks of 1,000."""
    rng = np.random.default_rng(0)
    model = packed_rows(rng, 500)
    rows = [
        [[number & 0xFFFF, number >> 16, *model[number % 500][0][2:]], *model[number % 500][1:]]
        for number in range(num_rows)
    ]
    third = num_rows // 3
    shards = [rows[:third], rows[third : third + 1], rows[third + 1 :]]
    write_tokens(folder, {("train", "web"): shards}, row_length=ROW_LENGTH, rows_a_batch=1000)
    return folder


def numbers_of(ids):
    return (ids[:, 0].astype(np.int64) + (ids[:, 1].astype(np.int64) << 16)).tolist()


@pytest.mark.parametrize("num_rows", [65_537, 262_145])
@pytest.mark.parametrize("shuffle", [True, {"blocks": 8}], ids=["rows", "blocks"])
def test_every_row_once_from_world_7_to_5(s3, tmp_path, monkeypatch, num_rows, shuffle):
    monkeypatch.setattr("gristmill.storage.user_cache._folder", tmp_path / "copies")
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(retries, "LONGEST_WAIT_SECONDS", 0.01)
    folder = write_rows(tmp_path / "out", num_rows)
    url = upload(folder, s3, "out")
    total = sum(shard.bytes for _, _, shard in load_manifest(url).shards())
    proxy = FaultyProxy(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), fail_some)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    forget_stores()
    # A full shuffle through a cache of a tenth costs a block a row: a few steps of it, a whole epoch of the other.
    read, state = [], None
    per_rank = 16 if shuffle is True else num_rows // 24
    try:
        for world_size, num_steps in ((7, 2), (5, 2 if shuffle is True else 99)):
            iterators = []
            for rank in range(world_size):
                stream = Stream(
                    url, seed=7, epochs=1, shuffle=shuffle, cache=Cache(tmp_path / "cache", max_bytes=total // 10)
                )
                dataset = TorchDataset(stream, per_rank, rank=rank, world_size=world_size)
                if state is not None:
                    dataset.load_state_dict(state)
                loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
                iterators.append((dataset, iter(loader)))
            for _ in range(num_steps):
                step = [next(iterator, None) for _, iterator in iterators]
                if step[0] is None:
                    break
                for batch in step:
                    read += numbers_of(batch["input_ids"].numpy()[np.asarray(batch.row_mask)])
                state = json.loads(json.dumps(iterators[0][0].state_after(step[0])))
            del iterators, loader
    finally:
        proxy.close()
    if shuffle is True:
        permutation = Permutation(num_rows, make_epoch_key(7, "", 0))
        assert read == np.asarray(permutation(np.arange(len(read)))).tolist()
        assert len(read) == 16 * (7 + 5) * 2
    else:
        local = Stream(folder, seed=7, epochs=1, shuffle=shuffle)
        assert sorted(read) == list(range(num_rows))
        assert read[:5000] == numbers_of(local.rows(0, 5000)["input_ids"])


def test_two_jobs_of_eight_ranks_share_a_cache_while_ranks_are_killed(s3, tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.storage.user_cache._folder", tmp_path / "copies")
    folder = write_rows(tmp_path / "out", 20_000)
    url, cache = upload(folder, s3, "out"), tmp_path / "cache"
    total = sum(shard.bytes for _, _, shard in load_manifest(url).shards())

    def start(rank, num_rows):
        words = [sys.executable, "-c", JOB, url, str(cache), str(total // 10), str(rank), str(num_rows)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    jobs = [[start(rank, 4096) for rank in range(8)] for _ in range(2)]
    killed = [start(rank, 10**9) for rank in range(3)]
    try:
        for process in killed:
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        expected = Stream(folder, seed=7, rows=4096, shuffle={"blocks": 4})
        for job in jobs:
            outputs = [process.communicate()[0] for process in job]
            assert [process.returncode for process in job] == [0] * 8
            ranks = [json.loads(output.splitlines()[1]) for output in outputs]
            for step in range(4096 // 32):
                rows = [row for rank in ranks for row in rank[step]]
                assert rows == expected.rows(32 * step, 32 * step + 32)["input_ids"].tolist()
    finally:
        for process in [*killed, *(process for job in jobs for process in job)]:
            process.kill()
            process.wait()
            process.stdout.close()
    reader = Stream(url, cache=Cache(cache, max_bytes=total // 10)).reader.table.blocks
    checksums = set(reader.checksums.tolist())
    stored = [path for path in cache.glob("blocks/*/*") if not path.name.startswith(".")]
    assert stored
    assert all(xxhash.xxh3_64_intdigest(path.read_bytes()) in checksums for path in stored)
    reader.cache._evict()
    assert not list(cache.glob("blocks/*/.*.tmp"))
