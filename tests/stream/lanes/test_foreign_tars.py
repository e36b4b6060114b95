"""Tars of others, of texts and tokens, local and on a store: one order, exact resume, tokens made by loader workers."""

import io
import json
import os
import pickle
import shutil
import tarfile

import fsspec
import numpy as np
import pytest
import xxhash
from gristmill_testing.foreign_files import IDS, TEXTS, upload, write_tar
from gristmill_testing.small_tokenizers import trained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from gristmill.core.errors import DamagedDatasetError, SampleError, UsageError
from gristmill.storage.paths import find_files
from gristmill.storage.stores.object_store import ObjectStore
from gristmill.storage.user_cache import BlockCache, name_block
from gristmill.stream import Cache, Collate, Samples, Stream
from gristmill.stream.lanes import foreign_tars
from gristmill.stream.lanes.table_blocks import identify_file
from gristmill.stream.read_plan import plan_reads
from gristmill.stream.torch import TorchDataset, TorchRows
from gristmill.text.tokenizers.engine import load_engine

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(foreign_tars, "_BLOCK_BYTES", 8192)


def rows_of(batches):
    """The rows of batches of tokens, without padding."""
    return [
        np.asarray(row)[:length].tolist()
        for batch in batches
        for row, length, is_real in zip(batch["input_ids"], batch.tokens.tolist(), batch.row_mask, strict=True)
        if is_real
    ]


def keys_of(batches):
    return [key for batch in batches for key, is_real in zip(batch["__key__"], batch.row_mask, strict=True) if is_real]


def test_a_store_has_the_samples_and_the_order_of_a_disk(tars, s3, tmp_path, small_blocks):
    url = upload(tars, s3, "tars")
    for shuffle in (True, False, {"blocks": 2}):
        local = Stream(str(tars / "t-{0..2}.tar"), seed=3, epochs=1, shuffle=shuffle)
        remote = Stream(f"{url}/t-{{0..2}}.tar", seed=3, epochs=1, shuffle=shuffle, cache=tmp_path / "cache")
        assert keys_of(remote.batches(7)) == keys_of(local.batches(11))
        assert len(set(keys_of(Stream(f"{url}/*.tar", epochs=1, cache=tmp_path / "cache").batches(7)))) == 60
    sample = remote.samples(np.array([0]))[0]
    number = int(sample["__key__"])
    assert sample["txt"] == TEXTS[number]
    assert sample["npy"].tolist() == IDS[number]
    assert sample["json"] == {"n": number}


@pytest.fixture
def fetched(monkeypatch):
    """The sizes of all ranges that were read from a store."""
    sizes = []
    read = ObjectStore.read

    def count(self, *args, **kwargs):
        data = read(self, *args, **kwargs)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(ObjectStore, "read", count)
    return sizes


def test_blocks_are_fetched_once_where_they_are_shuffled(tars, s3, tmp_path, small_blocks, monkeypatch, fetched):
    url = upload(tars, s3, "tars")
    Stream(f"{url}/*.tar", cache=tmp_path / "cache")
    monkeypatch.setattr(foreign_tars, "_index_samples", pytest.fail)  # the pass over the tars was made once
    stream = Stream(f"{url}/*.tar", epochs=1, shuffle={"blocks": 2}, cache=tmp_path / "empty")
    plan = plan_reads(stream, 4, 1, 100)
    fetched.clear()
    assert len(keys_of(stream.batches(4))) == 60
    cache = stream.reader.table.blocks.cache
    assert (cache.num_fetches, cache.fetched_bytes) == (plan.requests, plan.distinct_bytes)
    assert (len(fetched), sum(fetched)) == (plan.requests, plan.distinct_bytes)
    assert plan.requests > 10


@pytest.mark.parametrize("size", [700, 90_000, 3_000_000])
def test_no_byte_of_a_store_is_fetched_twice(s3, tmp_path, fetched, size):
    (tmp_path / "tars").mkdir()
    contents = [np.random.default_rng(number).bytes(size) for number in range(8)]
    write_tar(tmp_path / "tars" / "a.tar", [(n, [("bin", data), ("txt", b"x")]) for n, data in enumerate(contents)])
    url, num_bytes = upload(tmp_path / "tars", s3, "large"), (tmp_path / "tars" / "a.tar").stat().st_size
    stream = Stream(f"{url}/*.tar", epochs=1, cache=tmp_path / "cache")
    of_index = sum(fetched)
    assert of_index <= (num_bytes if size < 1 << 20 else num_bytes / 20)
    read = {sample["__key__"]: sample["bin"] for sample in stream.samples(np.arange(8))}
    assert read == {f"{number:04d}": data for number, data in enumerate(contents)}
    assert sum(fetched) <= num_bytes + (of_index if size > 1 << 20 else 0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([0, 5, 600, 70_000, 90_000, 200_000, 400_000]), min_size=1, max_size=12), st.booleans())
def test_gaps_of_any_length_are_skipped(tmp_path_factory, monkeypatch, sizes, has_long_names):
    monkeypatch.setattr(foreign_tars, "_SKIPPED_BYTES", 80_000)
    monkeypatch.setattr(foreign_tars, "_BLOCK_BYTES", 100_000)
    folder = tmp_path_factory.mktemp("gaps")
    name = "n" * 150 if has_long_names else "n"
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(f"{name}{number:04d}.bin")
            info.size = size
            tar.addfile(info, io.BytesIO(np.random.default_rng(number).bytes(size)))
    content = (folder / "a.tar").read_bytes()
    fsspec.filesystem("memory").pipe_file("/gaps/a.tar", content)
    [stored], [local] = find_files("memory://gaps/a.tar"), find_files(str(folder / "a.tar"))
    cache = BlockCache(folder / "cache", 1 << 30)
    index = foreign_tars._index_samples(stored, foreign_tars._find_starts, cache)
    expected = foreign_tars._index_samples(local, foreign_tars._find_starts, None)
    starts = index["starts"]
    assert starts.tolist() == expected["starts"].tolist()
    borders = starts[[0, *foreign_tars.find_block_ends(starts)]].tolist()
    for start, stop, checksum in zip(borders[:-1], borders[1:], index["xxh3"].tolist(), strict=True):
        assert checksum in (0, xxhash.xxh3_64_intdigest(content[start:stop]))
        assert checksum or max(sizes) > 80_000
        assert cache.has_block(name_block(identify_file(stored), start, stop - start)) == bool(checksum)


def test_a_cache_that_is_full_takes_no_more_blocks(tars, s3, tmp_path, small_blocks):
    url = upload(tars, s3, "tars")
    stream = Stream(f"{url}/*.tar", epochs=1, cache=Cache(tmp_path / "cache", max_bytes=20_000))
    kept = sum(path.stat().st_size for path in (tmp_path / "cache" / "blocks").rglob("*") if path.is_file())
    assert 0 < kept <= 20_000
    assert len(set(keys_of(stream.batches(7)))) == 60


@pytest.mark.parametrize("size", [700, 3_000_000])
def test_a_tar_that_changes_on_the_store_is_refused(s3, tmp_path, size):
    (tmp_path / "tars").mkdir()
    path = tmp_path / "tars" / "t-0.tar"
    write_tar(path, [(number, [("bin", b"fox" * size)]) for number in range(3)])
    url = upload(tmp_path / "tars", s3, "tars")
    stream = Stream(f"{url}/*.tar", epochs=1, cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache" / "blocks")
    s3.put("tars/t-0.tar", path.read_bytes().replace(b"fox", b"cat"))
    with pytest.raises(Exception, match=r"t-0\.tar") as caught:
        keys_of(stream.batches(4))
    assert not isinstance(caught.value, KeyError)


def test_damage_on_the_way_is_found(tars, s3, tmp_path, monkeypatch):
    url = upload(tars, s3, "tars")
    Stream(f"{url}/*.tar", cache=tmp_path / "cache")
    stream = Stream(f"{url}/*.tar", epochs=1, cache=tmp_path / "empty")
    from gristmill.stream.rows import block_reader

    fetch = block_reader._fetch
    monkeypatch.setattr(block_reader, "_fetch", lambda *place: bytes(fetch(*place)).replace(b"quick", b"quack"))
    with pytest.raises(DamagedDatasetError, match="is damaged at byte"):
        keys_of(stream.batches(4))


@pytest.mark.parametrize("place", ["local", "store"])
def test_texts_are_tokenized_by_workers_and_resumed_with_others(tars, tokenizer, s3, tmp_path, place):
    data = str(tars / "*.tar") if place == "local" else upload(tars, s3, "tars") + "/t-{0..2}.tar"
    engine = load_engine(tokenizer)

    def make():
        settings = {"tokenizer": tokenizer.path, "text": "txt"}
        return Stream(data, seed=5, epochs=2, samples=Samples(tokenize=settings), cache=tmp_path / "cache")

    order = [int(key) for key in keys_of(Stream(data, seed=5, epochs=2, cache=tmp_path / "cache").batches(1))]
    expected = [[*engine.encode([TEXTS[number]])[0].tolist(), engine.eos_id] for number in order]
    assert rows_of(make().batches(7)) == expected
    state, read = None, []
    for world_size, num_workers, num_steps in ((3, 2, 2), (2, 1, 99)):
        iterators = []
        for rank in range(world_size):
            dataset = TorchDataset(make(), 4, rank=rank, world_size=world_size)
            if state is not None:
                dataset.load_state_dict(json.loads(state))
            iterators.append((dataset, iter(DataLoader(dataset, batch_size=None, num_workers=num_workers))))
        for _ in range(num_steps):
            step = [next(iterator, None) for _, iterator in iterators]
            if step[0] is None:
                break
            read += rows_of(step)
            state = json.dumps(iterators[0][0].state_after(step[0]))
    assert read == expected[: len(read)]
    assert len(read) == 60


def add_mark(record):
    return {"text": record["txt"] + "!", "n": record["json"]["n"]}


def test_transform_runs_before_tokenize_and_rows_can_be_cut(tars, tokenizer):
    engine = load_engine(tokenizer)
    settings = {"tokenizer": tokenizer.path, "max_tokens": 5, "add_eos": False}
    stream = Stream(
        str(tars / "*.tar"),
        epochs=1,
        shuffle=False,
        samples=Samples(transform=add_mark, tokenize=settings),
        collate=Collate(fields=("input_ids", "labels", "position_ids"), pad_id=9),
    )
    batch = stream.rows(0, 4)
    assert batch["input_ids"].shape[1] == 5
    assert rows_of([batch]) == [engine.encode([TEXTS[number] + "!"])[0][:5].tolist() for number in range(4)]
    assert pickle.loads(pickle.dumps(stream)).rows(0, 4)["labels"].tolist() == batch["labels"].tolist()
    row = TorchRows(stream)[3]
    assert row["input_ids"].tolist() == rows_of([batch])[3]


def test_tokens_in_tars_become_rows(tars):
    stream = Stream(str(tars / "*.tar"), epochs=1, shuffle=False, samples=Samples(ids="npy"))
    batches = list(stream.batches(7))
    assert rows_of(batches) == IDS
    assert batches[0]["labels"][0].tolist()[: len(IDS[0])] == IDS[0]
    assert (batches[0]["labels"][0][len(IDS[0]) :] == -100).all()
    # ranks without rows get batches as wide as the global one
    empty = Stream(str(tars / "t-1.tar"), epochs=1, shuffle=False, samples=Samples(ids="npy")).batch(
        0, 2, rank=1, world_size=2
    )
    assert empty["input_ids"].shape == (2, len(IDS[30]))
    assert not empty.row_mask.any()


def test_wrong_use_is_refused(tars, tokenizer, tmp_path):
    folder = tokenizer.path
    pattern = str(tars / "*.tar")
    for samples, options, words in (
        ({"tokenize": {"tokenizer": folder, "texts": "txt"}}, {}, "texts"),
        ({"tokenize": {"tokenizer": folder, "max_tokens": 0}}, {}, "max_tokens"),
        ({"tokenize": 3}, {}, "tokenize"),
        ({"tokenize": folder, "ids": "npy"}, {}, "ids"),
        ({}, {"collate": Collate()}, "collate"),
        ({"ids": "npy"}, {"tokens": 9}, "tokens"),
    ):
        with pytest.raises(UsageError, match=words):
            Stream(pattern, samples=Samples(**samples), **options)
    with pytest.raises(UsageError, match="no text"):
        Stream(pattern, samples=Samples(tokenize={"tokenizer": folder, "text": "caption"})).rows(0, 1)
    with pytest.raises(UsageError, match="not a list of token ids"):
        Stream(pattern, samples=Samples(ids="txt")).rows(0, 1)
    write_tar(tmp_path / "bad.tar", [(0, [("npy", b"\x93NUMPY rubbish")])])
    with pytest.raises(SampleError, match="npy"):
        Stream(tmp_path / "bad.tar", samples=Samples(ids="npy")).rows(0, 1)


def test_the_state_of_files_that_were_only_touched(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, [(number, [("txt", TEXTS[number].encode())]) for number in range(9)])
    stream = Stream(path, seed=3, epochs=1)
    batches = stream.batches(2)
    first = keys_of([next(batches)])
    state = stream.state_dict()
    (tmp_path / "copy").mkdir()
    Stream(shutil.copy2(path, tmp_path / "copy"), seed=3, epochs=1).load_state_dict(state)  # with its times
    os.utime(path, ns=(1, 1))
    touched = Stream(path, seed=3, epochs=1)
    with pytest.raises(UsageError, match="touched or copied"):
        touched.load_state_dict(state)
    touched.load_state_dict(state, ignore=["dataset_hash"])
    assert first + keys_of(touched.batches(2)) == keys_of(Stream(path, seed=3, epochs=1).batches(2))


@pytest.mark.parametrize("suffix", ["tar", "parquet"])
def test_a_dataset_may_be_called_like_a_file(packed, tmp_path, suffix):
    (tmp_path / f"rows.{suffix}").symlink_to(packed)
    assert sum(len(batch.row_mask) for batch in Stream(tmp_path / f"rows.{suffix}", epochs=1).batches(53)) == 53


@pytest.fixture
def lines(tmp_path):
    """Two files of JSON Lines, with blank lines, other line ends, a byte order mark and no end of the last line."""
    folder = tmp_path / "lines"
    folder.mkdir()
    written = [
        json.dumps({"n": number, "text": text, "input_ids": ids}).encode()
        for number, (text, ids) in enumerate(zip(TEXTS, IDS, strict=True))
    ]
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(written[:40]) + b"\n\n  \n")
    (folder / "b.jsonl").write_bytes(b"\n" + b"\n\n".join(written[40:]))
    return folder


def test_json_lines_stream_like_tars(lines, s3, tmp_path, small_blocks, tokenizer):
    url = upload(lines, s3, "lines")
    for shuffle in (True, False, {"blocks": 2}):
        local = Stream(str(lines / "*.jsonl"), seed=3, epochs=1, shuffle=shuffle, samples=Samples(transform=dict))
        remote = Stream(
            f"{url}/*.jsonl",
            seed=3,
            epochs=1,
            shuffle=shuffle,
            samples=Samples(transform=dict),
            cache=tmp_path / "cache",
        )
        order = [n for batch in local.batches(11) for n in batch["n"][batch.row_mask].tolist()]
        assert sorted(order) == list(range(60))
        assert (order == list(range(60))) == (shuffle is False)
        read, state = [], None
        for batch in remote.batches(3, rank=0, world_size=1):
            read += batch["n"].tolist()
            state = remote.state_dict()
            if len(read) == 21:
                break
        rest = Stream(
            f"{url}/*.jsonl",
            seed=3,
            epochs=1,
            shuffle=shuffle,
            samples=Samples(transform=dict),
            cache=tmp_path / "cache",
        )
        rest.load_state_dict(state)
        read += [n for batch in rest.batches(5) for n in batch["n"][batch.row_mask].tolist()]
        assert read == order
    plain = Stream(str(lines / "*.jsonl"), shuffle=False, epochs=1, samples=Samples(ids="input_ids"))
    assert rows_of(plain.batches(7)) == IDS
    texts = Stream(
        str(lines / "*.jsonl"),
        shuffle=False,
        epochs=1,
        samples=Samples(tokenize={"tokenizer": tokenizer.path, "text": "text"}),
    )
    assert len(rows_of(texts.batches(7))) == 60


@pytest.mark.parametrize("line", [b"{broken", b"[1, 2]", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 0}\n' + line + b'\n{"n": 2}\n')
    stream = Stream(path, epochs=1, shuffle=False)
    assert stream.samples(np.array([0, 2])) == [{"n": 0}, {"n": 2}]
    with pytest.raises(SampleError, match=r"row 1 of the stream \(sample 1 of .*a\.jsonl\) cannot be used"):
        stream.rows(0, 3)
    path.write_bytes(b" \n")
    with pytest.raises(UsageError, match="no line"):
        Stream(path)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_lines_are_found_whatever_is_read_at_a_time(size, monkeypatch):
    monkeypatch.setattr(foreign_tars, "_READ_BYTES", size)
    content = b"\n\nab\n \ncdefghijkl\n\nm"
    assert list(foreign_tars._find_lines(io.BytesIO(content), "x")) == [2, 7, 19, 20]
