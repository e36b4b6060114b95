"""Streams from a real object store through a cache: the same rows as from a disk, whatever fails."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xxhash
from click.testing import CliRunner
from gristmill_testing.buckets import CREDENTIALS, Bucket
from gristmill_testing.faulty_proxy import BUSY, CUT, RESET, FaultyProxy
from gristmill_testing.foreign_files import upload
from gristmill_testing.pictures import photo
from gristmill_testing.streams import ids_of, write_packed
from torch.utils.data import DataLoader

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import command_line
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.pipeline.jobs.mix_datasets import mix
from gristmill.shards.manifest_file import load_manifest
from gristmill.storage import user_cache as block_cache
from gristmill.storage.stores import retries
from gristmill.storage.stores.open_store import forget_stores
from gristmill.storage.user_cache import BlockCache
from gristmill.stream import Cache, Stream
from gristmill.stream.mapped_memory import ReadAhead
from gristmill.stream.read_plan import plan_reads
from gristmill.stream.torch import TorchDataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

MIXTURE = {"code": 0.3, "web": 0.7}


@pytest.fixture(scope="module")
def bucket(seaweed, packed):
    """A bucket with the dataset."""
    made = Bucket(seaweed.endpoint, f"stream-{uuid.uuid4().hex[:12]}").create()
    upload(packed, made, "out")
    return made


@pytest.fixture
def store(seaweed, bucket, tmp_path, monkeypatch):
    """The bucket, to which the environment leads."""
    for key, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": seaweed.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("gristmill.storage.user_cache._folder", tmp_path / "copies")
    forget_stores()
    yield bucket
    forget_stores()


@pytest.fixture
def remote(store, tmp_path):
    """The dataset on the store: `remote(rows=40)` opens it with a small cache."""
    url = f"{store.url}/out"

    def open_stream(**options):
        return Stream(url, **{"seed": 7, "cache": tmp_path / "cache", **options})

    open_stream.url, open_stream.bucket, open_stream.cache = url, store, tmp_path / "cache"
    return open_stream


def cached_blocks(folder):
    return [path for path in folder.glob("blocks/*/*") if not path.name.startswith(".")]


def test_rows_are_those_of_the_local_stream(remote, oracle, mixed_oracle):
    assert ids_of(remote(rows=160).batches(7)) == oracle
    assert ids_of(remote(rows=160, mixture=MIXTURE).batches(7)) == mixed_oracle
    stream = remote()
    assert stream.where(0, 2)[0].documents
    assert os.stat(remote.cache).st_mode & 0o777 == 0o700


def test_with_a_cache_of_a_tenth_and_faults_at_every_third_request(remote, oracle, monkeypatch):
    total = sum(shard.bytes for _, _, shard in load_manifest(remote.url).shards())
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(retries, "LONGEST_WAIT_SECONDS", 0.01)
    proxy = FaultyProxy(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), _third_of_them)
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        forget_stores()
        stream = remote(rows=106, cache=Cache(remote.cache, max_bytes=total // 10))
        assert ids_of(stream.batches(5)) == oracle[:106]
    finally:
        proxy.close()
    cached = cached_blocks(remote.cache)
    assert sum(path.stat().st_size for path in cached) <= total // 10 + total // 160 + max(
        path.stat().st_size for path in cached
    )
    assert stream.reader.table.blocks.cache.num_fetches > 53 / 2  # blocks were fetched again and again


def test_the_blocks_of_two_windows_are_requested_ahead(remote, monkeypatch):
    monkeypatch.setattr(ReadAhead, "batches_ahead", staticmethod(lambda num_rows: 1))
    stream = remote(epochs=1, shuffle={"blocks": 4})
    blocks, window = stream.reader.table.blocks, int(stream.order.window_rows)
    in_order = blocks.blocks_of(stream.order(np.arange(53)).indices)
    requested = set()
    monkeypatch.setattr(blocks, "request_rows", lambda rows: requested.update(blocks.blocks_of(rows).tolist()))
    stream.batch_at(0, 1)
    later = in_order[2 * window : 3 * window].tolist()
    assert requested & set(in_order[window : 2 * window].tolist())
    assert requested & set(later)
    for row in range(1, window + 2):
        stream.batch_at(row, 1)
    assert set(later) <= requested


@pytest.mark.slow  # a minute
def test_elastic_resume_with_worker_processes_faults_and_a_small_cache(remote, oracle, monkeypatch):
    """World 3 to 2 with 2 workers each, while every third request fails; then one worker to the end."""
    total = sum(shard.bytes for _, _, shard in load_manifest(remote.url).shards())
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(retries, "LONGEST_WAIT_SECONDS", 0.01)
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    proxy = FaultyProxy(int(endpoint.rpartition(":")[2]), _third_of_them)
    state, read = None, []
    try:
        for world_size, num_workers, num_steps in [(3, 2, 2), (2, 2, 2), (1, 1, 99)]:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint if world_size == 1 else proxy.endpoint)
            forget_stores()
            iterators = []
            for rank in range(world_size):
                stream = remote(epochs=2, cache=Cache(remote.cache, max_bytes=total // 10))
                dataset = TorchDataset(stream, 2, rank=rank, world_size=world_size)
                if state is not None:
                    dataset.load_state_dict(json.loads(state))
                loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context="spawn")
                iterators.append((dataset, iter(loader)))
            for _ in range(num_steps):
                step = [next(iterator, None) for _, iterator in iterators]
                if step[0] is None:
                    break
                read += ids_of(step)
                state = json.dumps(iterators[0][0].state_after(step[0]))
            del iterators, loader
    finally:
        proxy.close()
    assert read == oracle[: len(read)]
    assert len(read) == 53


def test_blocks_are_fetched_once_and_as_planned(remote, monkeypatch):
    stream = remote(epochs=1, shuffle={"blocks": 4})
    plan = plan_reads(stream, 3, 1, 1000)
    local = sorted(ids_of(remote(epochs=1).batches(5)))
    proxy = FaultyProxy(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))  # counts what really was sent
    try:
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            forget_stores()
            fresh = remote(epochs=1, shuffle={"blocks": 4}, cache=remote.cache.with_name("other"))
            assert sorted(ids_of(fresh.batches(3))) == local
    finally:
        proxy.close()
        forget_stores()
    sent = [num_bytes for line, num_bytes in proxy.answers if ".arrow" in line and line.startswith("GET")]
    assert (len(sent), sum(sent)) == (plan.requests, plan.bytes_read)
    cache = fresh.reader.table.blocks.cache
    assert (cache.num_fetches, cache.fetched_bytes) == (plan.requests, plan.bytes_read)
    assert plan.bytes_read == plan.distinct_bytes == int(fresh.reader.table.blocks.bytes.sum())
    assert plan.needed_cache_bytes < plan.distinct_bytes
    small = remote(epochs=1, cache=Cache(remote.cache, max_bytes=plan.needed_cache_bytes))
    assert plan_reads(small, 3, 1, 1000).bytes_read > plan.bytes_read
    assert plan.rows == 53  # the last batch is not full
    in_order = remote(
        epochs=1, shuffle=False, cache=Cache(remote.cache.with_name("small"), max_bytes=plan.bytes_read // 3)
    )
    assert sum(1 for _ in in_order.batches(3)) == plan.steps
    assert in_order.reader.table.blocks.cache.num_fetches == plan.requests  # nothing goes before it is used


def test_the_command_plan(remote):
    result = CliRunner().invoke(
        command_line, ["stream", "plan", remote.url, "--steps", "3", "--world", "4", "--nodes", "2", "--json"]
    )
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    assert plan["rows"] == 3 * 2 * 32
    assert plan["bytes_per_row"] * plan["rows"] == plan["bytes_read"]


def test_the_command_bench_reads_through_an_empty_cache(remote):
    words = ["stream", "bench", remote.url, "--seconds", "0.05", "--workers", "0", "--batch-size", "4", "--json"]
    result = CliRunner().invoke(command_line, [*words, "--cache", str(remote.cache)])
    assert result.exit_code == 0, result.output
    bench = json.loads(result.output)
    names = [entry["loader"] for entry in bench["measurements"]]
    assert names[-2:] == ["empty cache, full shuffle", "empty cache, shuffled blocks"]
    assert all(entry["bytes_per_row"] > 0 for entry in bench["measurements"][-2:])
    assert len(bench["advice"]) >= 2


def test_states_know_the_shuffle(remote, packed):
    ours, other = remote(shuffle={"blocks": 4}), remote(shuffle={"blocks": 5})
    next(ours.batches(4))
    with pytest.raises(UsageError, match="shuffle"):
        other.load_state_dict(ours.state_dict())
    local = Stream(packed, seed=7, shuffle={"blocks": 4})
    local.load_state_dict(ours.state_dict())
    assert ids_of([next(local.batches(9))]) == ids_of([next(ours.batches(9))])


def test_a_damaged_block_is_fetched_again_and_then_named(remote, oracle):
    _, _, shard = next(entry for entry in load_manifest(remote.url).shards() if entry[2].rows)
    key = f"out/{shard.path}"
    content = remote.bucket.get(key)
    remote()  # the dataset has no index, and gets one now
    remote.bucket.put(key, content[:600] + bytes([content[600] ^ 1]) + content[601:])
    try:
        with pytest.raises(DamagedDatasetError, match=r"shard-00000\.arrow.*is damaged at byte"):
            list(remote(rows=53).batches(4))
        remote.bucket.delete(key)
        with pytest.raises(DamagedDatasetError, match=r"shard-00000\.arrow.*the store no longer has this object"):
            list(remote(rows=53).batches(4))
    finally:
        remote.bucket.put(key, content)
    assert ids_of(remote(rows=53).batches(4)) == oracle[:53]
    for path in cached_blocks(remote.cache)[:5]:  # and what was damaged in the cache is fetched again
        path.write_bytes(b"?" * path.stat().st_size)
    assert ids_of(remote(rows=53).batches(4)) == oracle[:53]


def _third_of_them(line, number):
    return (RESET, CUT, BUSY)[number % 9 // 3] if number % 3 == 0 else None


RANKS = """
import sys, threading
from gristmill.stream import Cache, Stream
url, cache, cache_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows = {}
def read(rank):
    stream = Stream(url, seed=7, cache=Cache(cache, max_bytes=cache_bytes), rows=int(sys.argv[4]))
    rows[rank] = [batch["input_ids"].tolist() for batch in stream.batches(2, rank, 4)]
threads = [threading.Thread(target=read, args=(rank,)) for rank in range(4)]
print("begun", flush=True)
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print([row for step in zip(*(rows[rank] for rank in range(4))) for batch in step for row in batch])
"""


@contextmanager
def start_job(remote, cache_bytes, rows=96):
    words = [sys.executable, "-c", RANKS, remote.url, str(remote.cache), str(cache_bytes), str(rows)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        try:
            yield job
        finally:
            job.kill()


@pytest.mark.full
def test_two_jobs_of_four_ranks_share_a_cache_and_one_is_killed(remote, oracle):
    total = sum(shard.bytes for _, _, shard in load_manifest(remote.url).shards())
    with (
        start_job(remote, total // 5) as first,
        start_job(remote, total // 5) as second,
        start_job(remote, total // 5, 10**9) as killed,
    ):
        killed.stdout.readline()
        for job in (first, second):
            assert json.loads(job.stdout.read().partition("\n")[2]) == oracle[:96]
    known_checksums = set(remote().reader.table.blocks.checksums.tolist())
    for path in cached_blocks(remote.cache):
        assert xxhash.xxh3_64_intdigest(path.read_bytes()) in known_checksums
    # What the killed job was writing is gone after an eviction.
    stream = remote(rows=53, cache=Cache(remote.cache, max_bytes=total // 5))
    assert ids_of(stream.batches(4)) == oracle[:53]
    stream.reader.table.blocks.cache._evict()
    assert not list(remote.cache.glob("blocks/*/.*.tmp"))


def test_a_file_that_a_killed_process_left_is_removed_and_one_in_use_is_not(tmp_path):
    cache = BlockCache(tmp_path / "cache", 100)
    data = b"x" * 60
    os.close(cache.open_block("ab-1", 60, xxhash.xxh3_64_intdigest(data), lambda: data))
    abandoned = tmp_path / "cache/blocks/ab/.dead.tmp"
    abandoned.write_bytes(b"half")
    with (tmp_path / "cache/blocks/ab/.alive.tmp").open("wb") as alive:
        assert block_cache._try_lock(alive.fileno())
        cache._evict()
        assert not abandoned.exists()
        assert Path(alive.name).exists()
    os.close(cache.open_block("ab-2", 60, xxhash.xxh3_64_intdigest(data), lambda: data))
    cache._evict()
    assert [path.name for path in cached_blocks(tmp_path / "cache")] == ["ab-2"]


def test_a_block_is_written_whole_in_small_pieces(tmp_path, monkeypatch):
    written, write = [], os.write

    def write_some(descriptor, data):
        written.append(len(data))
        return write(descriptor, data[:100_000])

    monkeypatch.setattr(os, "write", write_some)
    cache, data = BlockCache(tmp_path / "cache", 1 << 30), os.urandom(1_000_000)
    os.close(cache.open_block("ab-1", len(data), xxhash.xxh3_64_intdigest(data), lambda: data))
    (stored,) = cached_blocks(tmp_path / "cache")
    assert stored.read_bytes() == data
    assert max(written) == 256 << 10  # a write of a whole block takes twice the processor time


def test_who_waits_too_long_fetches_the_block_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "_WAIT_SECONDS", 0.05)
    first, second = (BlockCache(tmp_path / "cache", 1000) for _ in range(2))
    data = b"y" * 10
    with first._lock_name("cd-1"):
        os.close(second.open_block("cd-1", 10, xxhash.xxh3_64_intdigest(data), lambda: data))
    assert second.num_fetches == 1


def test_shared_file_systems_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "is_shared_file_system", lambda folder: True)
    with pytest.raises(UsageError, match="machines may share"):
        BlockCache(tmp_path / "cache", 1000)


def test_cache_folders_that_cannot_be_used_are_refused_and_left_alone(tmp_path, packed):
    """A folder with other files in it keeps its rights: think of `cache="/tmp"` in a container."""
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "notes.txt").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "gone", shared):
        with pytest.raises(UsageError, match=f"the cache of blocks, {folder}.*"):
            BlockCache(folder, 1000)
    assert (shared.stat().st_mode & 0o777, os.listdir(shared)) == (0o755, ["notes.txt"])
    for cache in (5, "", b"folder", "s3://bucket/cache"):
        with pytest.raises(UsageError, match="cache must be a folder on a local disk"):
            Stream(packed, cache=cache)


def test_what_others_put_into_a_cache_folder_does_no_harm(tmp_path):
    """Links, folders and files of file managers among blocks, and somebody who clears the folder."""
    cache = BlockCache(tmp_path / "cache", 100)
    blocks, data = tmp_path / "cache/blocks", b"z" * 60
    (blocks / "ab" / "folder").mkdir(parents=True)
    (tmp_path / "target").write_bytes(data)
    (blocks / "ab" / "ab-1").symlink_to(tmp_path / "target")
    (blocks / "ab" / ".a.tmp").symlink_to(tmp_path / "target")
    (blocks / ".DS_Store").write_bytes(b"?")

    def open_block(name):
        os.close(cache.open_block(name, 60, xxhash.xxh3_64_intdigest(data), lambda: data))

    for name in ("ab-1", "ab-2", "ab-3"):
        open_block(name)
    assert [path.name for path in cached_blocks(tmp_path / "cache") if path.is_file()] == ["ab-3"]
    assert (tmp_path / "target").read_bytes() == data
    (blocks / "cd" / "cd-1").mkdir(parents=True)
    with pytest.raises(UsageError, match="Is a directory"):
        open_block("cd-1")
    shutil.rmtree(tmp_path / "cache")
    open_block("ab-3")
    assert os.stat(tmp_path / "cache").st_mode & 0o777 == 0o700


def test_wrong_arguments_are_refused(packed):
    for shuffle in ({"rows": 3}, {"blocks": 0}, {"blocks": 2.5}, {"blocks": 2, "rows": 2}):
        with pytest.raises(UsageError):
            Stream(packed, shuffle=shuffle)
    with pytest.raises(UsageError, match="local disk"):
        plan_reads(Stream(packed), 2, 1, 3)


def test_rows_of_mixed_lanes_know_their_sources(store, tmp_path):
    web, code = (write_packed(tmp_path / name, {name: [9, 4]}, seed=seed) for seed, name in enumerate(("web", "code")))
    mix({"web": (web, 0.5), "code": (code, 0.5)}, tmp_path / "mixed", size=20, by="rows")
    url = upload(tmp_path / "mixed", store, "mixed")
    local, remote = Stream(tmp_path / "mixed", rows=20), Stream(url, rows=20, cache=tmp_path / "cache")
    for ours, theirs in zip(remote.batches(4), local.batches(4), strict=True):
        assert ours.sources.tolist() == theirs.sources.tolist()
        assert np.array_equal(ours["input_ids"], theirs["input_ids"])


def test_local_and_remote_datasets_are_mixed(store, packed, oracle, tmp_path):
    other = write_packed(tmp_path / "other", {"books": [5, 9]}, seed=3)
    ours = {"web": (f"{store.url}/out", 0.6), "books": (other, 0.4)}
    local = {"web": (packed, 0.6), "books": (other, 0.4)}
    remote = Stream(ours, seed=7, rows=90, cache=tmp_path / "cache")
    expected = Stream(local, seed=7, rows=90)
    for batch, theirs in zip(remote.batches(7), expected.batches(7), strict=True):
        assert np.array_equal(batch["input_ids"], theirs["input_ids"])
        assert batch.sources.tolist() == theirs.sources.tolist()
    assert plan_reads(remote, 90, 1, 1).requests < len(remote.reader.table.blocks.rows)  # local ones are not fetched


def test_a_forked_worker_is_told_to_be_spawned(remote):
    dataset = TorchDataset(remote(epochs=1), 5, rank=0, world_size=1)
    with pytest.raises(UsageError, match=r'forked process.*\n*.*multiprocessing_context="spawn"'):
        list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"))


def test_samples_are_streamed_from_a_store_by_workers(store, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    for number in range(12):
        (root / f"{number:03d}.png").write_bytes(photo(number, "PNG", width=6, height=4))
    for form in ("webdataset", "arrow"):
        options = {"max_shard_samples": 5} if form == "webdataset" else {}
        read, write = steps.Read(read=str(root)), steps.Write(format=form, **options)
        gm.run(gm.Recipe(sources={"s": read}, steps=[write], output=str(tmp_path / form)), workers=1, backend="serial")
        url = upload(tmp_path / form, store, f"samples-{form}")
        local = list(Stream(tmp_path / form, seed=2, epochs=1).batches(5))
        dataset = TorchDataset(Stream(url, seed=2, epochs=1, cache=tmp_path / "cache"), 5, rank=0, world_size=1)
        remote = list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
        assert [batch["__key__"] for batch in remote] == [batch["__key__"] for batch in local]
        assert all(np.array_equal(ours["image"], theirs["image"]) for ours, theirs in zip(remote, local, strict=True))
        blocks = Stream(url, seed=2, epochs=1, cache=tmp_path / "cache", shuffle={"blocks": 2})
        assert sorted(key for batch in blocks.batches(4) for key in batch["__key__"]) == sorted(
            key for batch in local for key, is_real in zip(batch["__key__"], batch.row_mask, strict=True) if is_real
        )
