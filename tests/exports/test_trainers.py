"""Exports for trainers, read back by the library that they are for or by a reader of the format's description."""

import csv
import gzip
import itertools
import json

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError

LENGTH = 12
TRAIN = ("train", "web"), ("train", "books")


def make_rows(rng, num_rows):
    rows = []
    for _ in range(num_rows):
        lengths = [int(rng.integers(1, 5))]
        while sum(lengths) < LENGTH - 2:
            lengths.append(int(rng.integers(1, LENGTH - sum(lengths) + 1)))
        rows.append([rng.integers(1, 60_000, length).tolist() for length in lengths])
    return rows


@pytest.fixture
def packed(tmp_path, request):
    """A packed dataset and its training rows, each a list of documents."""
    rng = np.random.default_rng(5)
    shards = {TRAIN[0]: [make_rows(rng, 7), make_rows(rng, 4)], TRAIN[1]: [make_rows(rng, 6)]}
    shards[("validation", "web")] = [make_rows(rng, 2)]
    write_tokens(tmp_path / "out", shards, row_length=LENGTH, **getattr(request, "param", {}))
    return tmp_path / "out", [row for key in TRAIN for shard in shards[key] for row in shard]


def is_trained(row, *, masked):
    """For each token of a row's documents whether it is a label: no first token, and every second of a chat."""
    places = [place for document in row for place in range(len(document))]
    return [place > 0 and (not masked or number % 2 == 1) for number, place in enumerate(places)]


masks = pytest.mark.parametrize(
    ("packed", "masked"), [({}, False), ({"loss_masks": True}, True)], indirect=["packed"], ids=["tokens", "chats"]
)


@masks
def test_megatron_bridge(packed, masked, run):
    """As `GPTSFTPackedDataset.collate_fn` reads it: document by document, the mask beside shifted labels."""
    folder, rows = packed
    exported = run(folder, "megatron-bridge", row_group_rows=3)
    files = [path for path in exported.files if "_train-" in path.name]
    assert [path.name for path in files] == [f"corpus_train-0000{n}.idx.parquet" for n in range(3)]
    assert pq.ParquetFile(files[0]).num_row_groups == 3
    tables = [pq.read_table(path) for path in files]
    assert [str(field.type.value_type) for field in tables[0].schema] == ["int32", "int8", "int32"]
    stored = [entry for table in tables for entry in table.to_pylist()]
    assert len(stored) == len(rows)
    for entry, row in zip(stored, rows, strict=True):
        borders = [*entry["seq_start_id"], len(entry["input_ids"])]
        pieces = list(itertools.pairwise(borders))
        assert [entry["input_ids"][start:end] for start, end in pieces] == row
        label_mask = [bool(bit) for start, end in pieces for bit in entry["loss_mask"][start : end - 1]]
        trained = iter(is_trained(row, masked=masked))
        assert label_mask == [
            flag for document in row for place, flag in zip(range(len(document)), trained, strict=False) if place
        ]
        assert all(not entry["loss_mask"][end - 1] for _, end in pieces)


@masks
def test_llamafactory(packed, masked, run, tmp_path):
    folder, rows = packed
    exported = run(folder, "llamafactory")
    loaded = datasets.load_from_disk(str(tmp_path / "bin/corpus"))
    assert sorted(loaded) == ["train", "validation"]
    assert loaded["train"].column_names == ["input_ids", "attention_mask", "labels", "images", "videos", "audios"]
    assert exported.usage[0].endswith("neat_packing: true")
    assert loaded["train"].num_rows == len(rows)
    for entry, row in zip(loaded["train"], rows, strict=True):
        ids = [token for document in row for token in document]
        padding = LENGTH - len(ids)
        assert entry["input_ids"] == ids + [0] * padding
        numbers = [number for number, document in enumerate(row, 1) for _ in document]
        assert entry["attention_mask"] == numbers + [0] * padding
        trained = is_trained(row, masked=masked)
        assert (
            entry["labels"]
            == [token if flag else -100 for token, flag in zip(ids, trained, strict=True)] + [-100] * padding
        )
        assert entry["images"] is entry["audios"] is None


def test_llamafactory_without_packing(documents, run, tmp_path):
    run(documents, "llamafactory")
    train = datasets.load_from_disk(str(tmp_path / "bin/corpus"))["train"]
    assert train[0]["input_ids"] == [5, 6, 7]
    assert train[0]["attention_mask"] == [1, 1, 1]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(200, "<u1"), (60_000, "<u2"), (70_000, "<u4")])
def test_olmo_core(documents, run, vocab_size, dtype):
    exported = run(documents, "olmo-core", vocab_size=vocab_size)
    ids = sorted(path for path in exported.files if "_train_token_ids" in path.name and path.suffix == ".npy")
    assert read_memory_maps(ids, dtype) == [[5, 6, 7], [8], [9, 10], [11, 12], [20], [21, 22, 23, 24, 25]]
    assert not [path for path in exported.files if "labels_mask" in path.name]


def test_olmo_core_with_masks(tmp_path, run):
    write_tokens(tmp_path / "out", {("train", "web"): [[[5, 6, 7], [8, 9]]]}, loss_masks=True)
    exported = run(tmp_path / "out", "olmo-core", vocab_size=300)
    [mask] = [path for path in exported.files if "labels_mask" in path.name]
    assert np.fromfile(mask, dtype=np.bool_).tolist() == [False, True, False, False, True]


def read_memory_maps(paths, dtype):
    """The documents, by the borders beside the ids."""
    documents = []
    for path in paths:
        ids = np.memmap(path, dtype=dtype, mode="r")
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as file:
            borders = [(int(start), int(end)) for start, end in csv.reader(file)]
        assert borders[0][0] == 0
        assert borders[-1][1] == len(ids)
        documents += [ids[start:end].tolist() for start, end in borders]
    return documents


def read_mds(folder):
    """A reader of MDS: an index, and in each shard the count, the offsets and the samples."""
    index = json.loads((folder / "index.json").read_text())
    assert index["version"] == 2
    for shard in index["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        count = int(np.frombuffer(data, "<u4", 1)[0])
        assert count == shard["samples"]
        offsets = np.frombuffer(data, "<u4", count + 1, 4)
        for start, end in itertools.pairwise(offsets):
            sample, offset = {}, int(start)
            columns = zip(shard["column_names"], shard["column_sizes"], shard["column_encodings"], strict=True)
            for name, size, encoding in columns:
                kind, dtype, shape = encoding.split(":")
                assert kind == "ndarray"
                sample[name] = np.frombuffer(data[offset : offset + size], dtype).reshape(int(shape)).tolist()
                offset += size
            assert offset == end
            yield sample


@masks
def test_mds(packed, masked, run, tmp_path):
    folder, rows = packed
    run(folder, "mds")
    samples = list(read_mds(tmp_path / "bin/corpus/train"))
    assert len(samples) == len(rows)
    for sample, row in zip(samples, rows, strict=True):
        ids = [token for document in row for token in document]
        padding = LENGTH - len(ids)
        assert sample["input_ids"] == ids + [0] * padding
        trained = is_trained(row, masked=masked)
        labels = [token if flag else -100 for token, flag in zip(ids, trained, strict=True)]
        assert sample["labels"] == labels + [-100] * padding
        positions = [place for document in row for place in range(len(document))]
        assert sample["position_ids"] == positions + list(range(padding))


def read_litdata(folder, block_size):
    """A reader of litdata's tokens: blocks of each chunk, behind the count and the offsets of its items."""
    index = json.loads((folder / "index.json").read_text())
    dtype = {"no_header_tensor:20": "<u2", "no_header_tensor:15": "<i4"}[index["config"]["data_format"][0]]
    for chunk in index["chunks"]:
        data = (folder / chunk["filename"]).read_bytes()
        assert len(data) == chunk["chunk_bytes"]
        head = np.frombuffer(data, "<u4", chunk["chunk_size"] + 2)
        assert head[0] == chunk["chunk_size"]
        assert head[-1] == len(data)
        tokens = np.frombuffer(data, dtype, offset=4 * len(head))
        assert len(tokens) == chunk["dim"]
        for start in range(0, len(tokens) - block_size + 1, block_size):
            yield tokens[start : start + block_size].tolist()


@pytest.mark.parametrize("vocab_size", [60_000, 70_000])
def test_litdata(packed, documents_of, run, tmp_path, vocab_size):
    folder, rows = packed
    run(folder, "litdata", vocab_size=vocab_size)
    blocks = list(read_litdata(tmp_path / "bin/corpus/train", LENGTH))
    assert [block[: sum(map(len, row))] for block, row in zip(blocks, rows, strict=True)] == documents_of(rows)


@pytest.fixture
def documents_of():
    return lambda rows: [[token for document in row for token in document] for row in rows]


def test_litdata_without_packing(documents, run, tmp_path):
    run(documents, "litdata", vocab_size=300)
    blocks = list(read_litdata(tmp_path / "bin/corpus/train", 2))
    assert blocks == [[5, 6], [7, 8], [9, 10], [11, 12], [20, 21], [22, 23], [24, 25]]


@masks
def test_levanter(packed, masked, run):
    folder, rows = packed
    exported = run(folder, "jsonl", columns="levanter", split="train")
    lines = [json.loads(line) for path in exported.files for line in path.read_text().splitlines()]
    for line, row in zip(lines, rows, strict=True):
        trained = [*is_trained(row, masked=masked), False]
        assert line["loss_weights"] == [float(flag) for flag in trained[1:]]
        assert line["input_ids"] == [token for document in row for token in document]


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_row_groups_of_parquet(packed, run, rows):
    folder, expected = packed
    exported = run(folder, "parquet", row_group_rows=rows, split="train")
    groups = [pq.ParquetFile(path).metadata for path in exported.files]
    sizes = [group.row_group(n).num_rows for group in groups for n in range(group.num_row_groups)]
    assert sum(sizes) == len(expected)
    assert max(sizes) <= rows
    assert len(sizes) == sum(-(-count // rows) for count in (7, 4, 6))


@pytest.mark.parametrize("to", ["mds", "megatron-bridge"])
def test_rows_of_different_lengths_are_refused(documents, run, to):
    with pytest.raises(UsageError, match="not packed"):
        run(documents, to)


def test_what_a_format_cannot_hold_is_refused(packed, run, tmp_path):
    with pytest.raises(UsageError, match="whole documents in order"):
        run(packed[0], "olmo-core")
    with pytest.raises(UsageError, match="no row groups"):
        run(packed[0], "jsonl", row_group_rows=5)
    write_tokens(tmp_path / "chats", {("train", "web"): [[[5, 6, 7]]]}, loss_masks=True)
    with pytest.raises(UsageError, match="which tokens are trained"):
        run(tmp_path / "chats", "litdata")


def test_a_folder_of_files_is_replaced_as_a_whole(packed, run, tmp_path):
    folder, _ = packed
    run(folder, "mds")
    with pytest.raises(UsageError, match="would be overwritten"):
        run(folder, "mds")
    run(folder, "mds", overwrite=True)
    left = [path for path in (tmp_path / "bin/corpus").rglob("*") if path.name.startswith(".gristmill-files")]
    assert left == []
