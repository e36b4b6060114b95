"""Exports for OLMo-core, read back as its loader cuts them into documents."""

import csv
import gzip

import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens
from msgspec import structs

from gristmill.pipeline.jobs import export as export_job
from gristmill.shards.stored_files import TokenizerIdentity


@pytest.mark.parametrize(("vocab_size", "dtype"), [(200, "<u1"), (60_000, "<u2"), (70_000, "<u4")])
def test_olmo_core(documents, run, vocab_size, dtype):
    exported = run(documents, "olmo-core", vocab_size=vocab_size)
    ids = sorted(path for path in exported.files if "_train_token_ids" in path.name and path.suffix == ".npy")
    end_id = read_olmo_usage(exported)["tokenizer"]["eos_token_id"]
    assert end_id == vocab_size - 1
    documents = [[5, 6, 7], [8], [9, 10], [11, 12], [20], [21, 22, 23, 24, 25]]
    assert read_memory_maps(ids, dtype, end_id) == [[*document, end_id] for document in documents]
    assert not [path for path in exported.files if "labels_mask" in path.name]


def test_olmo_core_with_masks(tmp_path, run):
    write_tokens(tmp_path / "out", {("train", "web"): [[[5, 6, 7], [8, 9]]]}, loss_masks=True)
    exported = run(tmp_path / "out", "olmo-core", vocab_size=300)
    [mask] = [path for path in exported.files if "labels_mask" in path.name]
    assert np.fromfile(mask, dtype=np.bool_).tolist() == [False, True, False, False, False, True, False]


END, PAD, BEGIN = 7, 8, 9


@pytest.mark.parametrize(
    ("last", "num_ids", "expected_end", "is_stored"),
    [
        ([END], range(10, 20), END, True),  # each document ends with the end token: nothing is added
        ([], range(10, 20), END, False),  # it occurs nowhere
        ([END, 3], [*range(10, 20), END], PAD, False),  # it ends each message
        ([END], [*range(10, 20), END], PAD, False),
        ([END], [*range(10, 20), END, PAD, BEGIN], 29, False),
    ],
)
def test_olmo_core_finds_whole_documents(tmp_path, run, monkeypatch, last, num_ids, expected_end, is_stored):
    """For local files OLMo-core cuts the array at each end token: every document must come out whole."""
    identity = TokenizerIdentity(
        name="t",
        content="",
        files=[],
        vocab_size=30,
        eos_id=END,
        bos_id=BEGIN,
        pad_id=PAD,
        engine="",
        engine_version="",
        why="",
        parity={},
    )
    rng = np.random.default_rng(2)
    ids = list(num_ids)
    documents = [[*ids, *last], *([*rng.choice(ids, rng.integers(1, 30)).tolist(), *last] for _ in range(200))]
    shards = [documents[:90], documents[90:]]
    write_tokens(tmp_path / "out", {("train", "web"): shards}, loss_masks=True, rows_a_batch=17)
    load = export_job.load_manifest
    monkeypatch.setattr(export_job, "load_manifest", lambda folder: structs.replace(load(folder), tokenizer=identity))
    exported = run(tmp_path / "out", "olmo-core")
    config = read_olmo_usage(exported)
    assert config["tokenizer"]["eos_token_id"] == expected_end
    assert config["tokenizer"]["pad_token_id"] not in (None, expected_end)
    added = [] if is_stored else [expected_end]
    paths = sorted(path for path in exported.files if "_train_token_ids" in path.name and path.suffix == ".npy")
    assert read_memory_maps(paths, "<u1", expected_end) == [[*document, *added] for document in documents]


def read_olmo_usage(exported):
    """The arguments in the line that says how to read the files."""
    names = ("NumpyFSLDatasetConfig", "NumpyPackedFSLDatasetConfig", "TokenizerConfig")
    return eval(exported.usage[0], dict.fromkeys(names, dict))


def read_memory_maps(paths, dtype, end_id):
    """The documents as OLMo-core finds them: by the end token in the array. The borders beside it must be the same."""
    documents = []
    for path in paths:
        ids = np.memmap(path, dtype=dtype, mode="r")
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as file:
            borders = [(int(start), int(end)) for start, end in csv.reader(file)]
        assert borders[0][0] == 0
        assert borders[-1][1] == len(ids)
        assert [end - 1 for _, end in borders] == np.flatnonzero(ids == end_id).tolist()
        documents += [ids[start:end].tolist() for start, end in borders]
    return documents
