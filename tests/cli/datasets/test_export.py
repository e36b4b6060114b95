import json
from pathlib import Path

import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.cli.datasets.export import _choose_default_path


def test_says_what_was_written_and_how_to_use_it(gristmill, tmp_path):
    write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2]]]})
    said = gristmill("export", "out", "--to", "megatron", "--path", "bin/corpus", folder=tmp_path).out
    assert "bin/corpus_train.idx" in said
    assert "--data-path bin/corpus_train" in said
    assert (tmp_path / "bin/corpus_train.bin").read_bytes() == b"\x01\x00\x02\x00"


def test_default_path_and_json(gristmill, tmp_path):
    write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2]]]})
    said = json.loads(gristmill("export", "out", "--to", "nanogpt", "--json", folder=tmp_path).out)
    assert said["files"] == {"out-nanogpt/train.bin": 4}
    assert said["rows"] == {"train": 1}


def test_documents(gristmill, dataset, tmp_path):
    gristmill("export", dataset, "--to", "jsonl", "--split", "train", "--path", tmp_path / "x")
    [path] = tmp_path.iterdir()
    assert path.name == "x_train-00000.jsonl"


def test_refusals_say_what_to_do(gristmill, dataset, tmp_path):
    assert "tokenize" in gristmill("export", dataset, "--to", "megatron", fails=2).err
    assert "parquet" in gristmill("export", dataset, "--to", "parket", fails=2).err
    write_tokens(tmp_path / "out", {("train", "web"): [[[70_000]]]}, id_type="uint32")
    narrow = ("--to", "nanogpt", "--path", tmp_path / "nano", "--vocab-size", 60_000)
    assert "70000" in gristmill("export", tmp_path / "out", *narrow, fails=1).err
    gristmill("export", tmp_path / "out", "--to", "megatron", "--path", tmp_path / "x/y")
    assert (
        "--overwrite"
        in gristmill("export", tmp_path / "out", "--to", "megatron", "--path", tmp_path / "x/y", fails=2).err
    )


@pytest.mark.parametrize(
    ("out", "to", "expected"),
    [
        ("runs/web", "megatron", "runs/web-megatron/web"),
        ("s3://bucket/runs/web/", "megatron", "web-megatron/web"),
        ("s3://bucket/runs/web", "mds", "web-mds"),
    ],
)
def test_default_path(out, to, expected):
    """The files of a dataset on a store go to the current folder, not to one that is called `s3:`."""
    assert _choose_default_path(out, to) == Path(expected)
