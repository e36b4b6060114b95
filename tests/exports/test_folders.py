"""Exports to folders of chunks, read back by readers of the formats' descriptions.

Exports for LLaMA-Factory, read back by `datasets`.
"""

import itertools
import json

import datasets
import numpy as np
import pytest
from gristmill_testing.token_datasets import LENGTH, is_trained, masks

from gristmill.core.errors import UsageError


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


def test_a_folder_of_files_is_replaced_as_a_whole(packed, run, tmp_path):
    folder, _ = packed
    run(folder, "mds")
    with pytest.raises(UsageError, match="would be overwritten"):
        run(folder, "mds")
    run(folder, "mds", overwrite=True)
    left = [path for path in (tmp_path / "bin/corpus").rglob("*") if path.name.startswith(".gristmill-files")]
    assert left == []


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
