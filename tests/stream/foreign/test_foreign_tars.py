"""Tars of others, of texts and tokens, local and on a store: one order, exact resume, tokens made by loader workers."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
from gristmill_testing.foreign_files import IDS, TEXTS, upload, write_tar
from gristmill_testing.small_tokenizers import trained
from torch.utils.data import DataLoader

from gristmill.core.errors import DamagedDatasetError, SampleError, UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.examining.read_plan import plan_reads
from gristmill.stream.foreign import tars as foreign_tars
from gristmill.stream.torch import TorchDataset, TorchRows
from gristmill.text.tokenizers import load_engine

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


def test_blocks_are_fetched_once_where_they_are_shuffled(tars, s3, tmp_path, small_blocks, monkeypatch):
    url = upload(tars, s3, "tars")
    stream = Stream(f"{url}/*.tar", epochs=1, shuffle={"blocks": 2}, cache=tmp_path / "cache")
    plan = plan_reads(stream, 4, 1, 100)
    assert len(keys_of(stream.batches(4))) == 60
    cache = stream.reader.table.blocks.cache
    assert (cache.num_fetches, cache.fetched_bytes) == (plan.requests, plan.distinct_bytes)
    assert plan.requests > 10
    monkeypatch.setattr(foreign_tars, "_index_tar", None)  # the pass over the tars was made once
    Stream(f"{url}/*.tar", cache=tmp_path / "cache")


def test_a_tar_that_changes_on_the_store_is_refused(tars, s3, tmp_path):
    url = upload(tars, s3, "tars")
    stream = Stream(f"{url}/*.tar", epochs=1, cache=tmp_path / "cache")
    s3.put("tars/t-0.tar", (tars / "t-0.tar").read_bytes().replace(b"fox", b"cat"))
    with pytest.raises(Exception, match=r"t-0\.tar") as caught:
        keys_of(stream.batches(4))
    assert not isinstance(caught.value, KeyError)


def test_damage_on_the_way_is_found(tars, s3, tmp_path, monkeypatch):
    url = upload(tars, s3, "tars")
    stream = Stream(f"{url}/*.tar", epochs=1, cache=tmp_path / "cache")
    from gristmill.stream.stored_rows import block_reader

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
        return Stream(data, seed=5, epochs=2, tokenize=settings, cache=tmp_path / "cache")

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
        transform=add_mark,
        tokenize=settings,
        collate=Collate(fields=("input_ids", "labels", "position_ids"), pad_id=9),
    )
    batch = stream.rows(0, 4)
    assert batch["input_ids"].shape[1] == 5
    assert rows_of([batch]) == [engine.encode([TEXTS[number] + "!"])[0][:5].tolist() for number in range(4)]
    assert pickle.loads(pickle.dumps(stream)).rows(0, 4)["labels"].tolist() == batch["labels"].tolist()
    row = TorchRows(stream)[3]
    assert row["input_ids"].tolist() == rows_of([batch])[3]


def test_tokens_in_tars_become_rows(tars):
    stream = Stream(str(tars / "*.tar"), epochs=1, shuffle=False, ids="npy")
    batches = list(stream.batches(7))
    assert rows_of(batches) == IDS
    assert batches[0]["labels"][0].tolist()[: len(IDS[0])] == IDS[0]
    assert (batches[0]["labels"][0][len(IDS[0]) :] == -100).all()
    # ranks without rows get batches as wide as the global one
    empty = Stream(str(tars / "t-1.tar"), epochs=1, shuffle=False, ids="npy").batch(0, 2, rank=1, world_size=2)
    assert empty["input_ids"].shape == (2, len(IDS[30]))
    assert not empty.row_mask.any()


def test_wrong_use_is_refused(tars, tokenizer, tmp_path):
    folder = tokenizer.path
    pattern = str(tars / "*.tar")
    for options, words in (
        ({"tokenize": {"tokenizer": folder, "texts": "txt"}}, "texts"),
        ({"tokenize": {"tokenizer": folder, "max_tokens": 0}}, "max_tokens"),
        ({"tokenize": 3}, "tokenize"),
        ({"tokenize": folder, "ids": "npy"}, "ids"),
        ({"collate": Collate()}, "collate"),
        ({"ids": "npy", "tokens": 9}, "tokens"),
    ):
        with pytest.raises(UsageError, match=words):
            Stream(pattern, **options)
    with pytest.raises(UsageError, match="no text"):
        Stream(pattern, tokenize={"tokenizer": folder, "text": "caption"}).rows(0, 1)
    with pytest.raises(UsageError, match="not a list of token ids"):
        Stream(pattern, ids="txt").rows(0, 1)
    write_tar(tmp_path / "bad.tar", [(0, [("npy", b"\x93NUMPY rubbish")])])
    with pytest.raises(SampleError, match="npy"):
        Stream(tmp_path / "bad.tar", ids="npy").rows(0, 1)


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
