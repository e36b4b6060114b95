"""The shards of an export, in their order."""

import itertools
import json

import pytest
from gristmill_testing.token_datasets import write_tokens

import gristmill as gm


@pytest.fixture
def run(tmp_path):
    def start(dataset, to, **options):
        options = {"backend": "serial", "progress": False, "path": tmp_path / "bin/corpus"} | options
        return gm.export(dataset, to=to, **options)

    return start


def lines(paths):
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_rows_of_all_sources_follow_each_other(tmp_path, run):
    shards = {("train", "b"): [[[1]], [[2]]], ("train", "a"): [[[3]]]}
    folder = write_tokens(tmp_path / "out", shards)
    exported = run(folder, "jsonl")
    assert list(itertools.chain(*(row["input_ids"] for row in lines(exported.files)))) == [1, 2, 3]
    [note] = exported.notes
    assert "b, then a" in note


def test_whether_the_order_of_sources_is_told(tmp_path, run):
    folder = write_tokens(tmp_path / "out", {("train", "b"): [[[1], [2]]], ("train", "a"): [[[3], [4]]]})
    for to in ("nanogpt", "llmc", "webdataset", "parquet"):
        assert run(folder, to, path=tmp_path / "bin" / to).notes
    assert not run(folder, "megatron", overwrite=True).notes
    assert not run(folder, "llmc", overwrite=True, source="a").notes
    gm.mix(dict.fromkeys(("one", "two"), (folder, 1)), tmp_path / "mixed", size=8, by="rows")
    assert not run(tmp_path / "mixed", "llmc", overwrite=True).notes
