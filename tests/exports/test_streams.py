import itertools

import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import GristmillError
from gristmill.exports import streams
from gristmill.exports.streams import LlmcLayout

TRAIN = [5, 6, 7, 8, 9, 10, 11, 12, 20, 21, 22, 23, 24, 25]


def read_llmc(path):
    """As llm.c's data loader reads it, checks and all."""
    header = np.fromfile(path, "<i4", 256)
    assert header[:2].tolist() == [20240520, 1]
    assert not header[3:].any()
    assert path.stat().st_size == 1024 + 2 * header[2]
    return np.fromfile(path, "<u2", offset=1024).tolist()


def test_nanogpt(documents, run, tmp_path):
    exported = run(documents, "nanogpt")
    assert [path.name for path in exported.files] == ["corpus_train.bin", "corpus_validation.bin"]
    assert (tmp_path / "bin/corpus_train.bin").read_bytes() == np.array(TRAIN, "<u2").tobytes()
    assert np.memmap(tmp_path / "bin/corpus_validation.bin", np.uint16, "r").tolist() == [30, 31]


def test_llmc(documents, run, tmp_path):
    exported = run(documents, "llmc")
    assert [path.name for path in exported.files] == ["corpus_train_000000.bin", "corpus_validation_000000.bin"]
    assert read_llmc(tmp_path / "bin/corpus_train_000000.bin") == TRAIN


@pytest.mark.parametrize("tokens_a_file", [1, 3, 14, 100])
def test_llmc_goes_on_in_the_next_file(documents, run, tmp_path, monkeypatch, tokens_a_file):
    monkeypatch.setattr(
        "gristmill.pipeline.export.LlmcLayout", lambda split, count: LlmcLayout(split, count, tokens_a_file)
    )
    run(documents, "llmc", split="train")
    files = sorted((tmp_path / "bin").iterdir())
    read = [read_llmc(path) for path in files]
    assert [len(ids) for ids in read[:-1]] == [tokens_a_file] * (len(files) - 1)
    assert list(itertools.chain(*read)) == TRAIN


def test_files_of_an_older_longer_set_do_not_stay(documents, run, tmp_path, monkeypatch):
    for tokens_a_file, overwrite in [(5, False), (7, True)]:
        monkeypatch.setattr(
            "gristmill.pipeline.export.LlmcLayout",
            lambda split, count, most=tokens_a_file: LlmcLayout(split, count, most),
        )
        run(documents, "llmc", split="train", overwrite=overwrite)
    assert list(itertools.chain(*map(read_llmc, sorted((tmp_path / "bin").glob("*.bin"))))) == TRAIN


def test_the_header_can_count_the_tokens_of_a_file():
    assert streams.LLMC_TOKENS_A_FILE < 2**31


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_ids_above_16_bits_are_refused_and_leave_nothing(tmp_path, run, to):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[65_535]], [[65_536]]]}, id_type="uint32")
    with pytest.raises(GristmillError, match="token id 65536 does not fit"):
        run(folder, to)
    assert list((tmp_path / "bin").iterdir()) == []


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_wide_columns_of_small_ids_are_fine(tmp_path, run, to):
    run(write_tokens(tmp_path / "out", {("train", "web"): [[[65_535, 1]]]}, id_type="uint32"), to)
    [path] = (tmp_path / "bin").iterdir()
    assert path.read_bytes().endswith(b"\xff\xff\x01\x00")
