import itertools

import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.core.errors import GristmillError, UsageError
from gristmill.exports import arrays
from gristmill.exports.arrays import LlmcLayout
from gristmill.pipeline.jobs.export import export

ROW_LENGTH = 7
ROW = st.lists(st.integers(1, ROW_LENGTH), min_size=1, max_size=ROW_LENGTH).map(
    lambda sizes: [size for end, size in zip(np.cumsum(sizes), sizes, strict=True) if end <= ROW_LENGTH]
)


def slow(rows, *, loss_masks):
    """What should come out, token by token."""
    inputs, targets, masks = [], [], []
    for documents in rows:
        ids = [token for document in documents for token in document]
        owners = [number for number, document in enumerate(documents) for _ in document]
        padding = ROW_LENGTH - len(ids)
        ids, owners = ids + [0] * padding, owners + [None] * padding
        inputs.append(ids[:-1])
        targets.append(ids[1:])
        masks.append(
            [
                owners[place] is not None and owners[place] == owners[place - 1] and (place % 2 == 1 or not loss_masks)
                for place in range(1, ROW_LENGTH)
            ]
        )
    return inputs, targets, masks


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    shards=st.lists(st.lists(ROW, min_size=1, max_size=5), min_size=1, max_size=3),
    id_type=st.sampled_from(["uint16", "uint32"]),
    loss_masks=st.booleans(),
)
def test_arrays_are_those_of_slow_python(tmp_path_factory, shards, id_type, loss_masks):
    tmp_path = tmp_path_factory.mktemp("arrays")
    counter = iter(range(1, 10_000))
    filled = [[[[next(counter) for _ in range(size)] for size in row] for row in shard] for shard in shards]
    folder = write_tokens(
        tmp_path / "out", {("train", "web"): filled}, id_type=id_type, row_length=ROW_LENGTH, loss_masks=loss_masks
    )
    export(folder, to="numpy", path=tmp_path / "rows", backend="serial", progress=False)
    arrays = [np.load(tmp_path / f"rows_train_{name}.npy", mmap_mode="r") for name in ("input", "target", "mask")]
    assert [str(array.dtype) for array in arrays] == [id_type, id_type, "bool"]
    expected = slow([row for shard in filled for row in shard], loss_masks=loss_masks)
    assert [array.tolist() for array in arrays] == list(expected)


def test_all_workers_fill_the_same_files(tmp_path, run):
    shards = [[[[number] * 3, [100 + number] * 3]] * 20 for number in range(1, 8)]
    folder = write_tokens(tmp_path / "out", {("train", "web"): shards}, row_length=8)
    run(folder, "numpy", backend="processes", workers=3)
    inputs = np.load(tmp_path / "bin/corpus_train_input.npy", mmap_mode="r")
    assert inputs.shape == (140, 7)
    assert inputs[:, 0].tolist() == np.repeat(np.arange(1, 8), 20).tolist()


def test_unpacked_rows_are_refused(documents, run):
    with pytest.raises(UsageError, match="not packed"):
        run(documents, "numpy")


TRAIN = [5, 6, 7, 8, 9, 10, 11, 12, 20, 21, 22, 23, 24, 25]


def read_llmc(path, *, is_llama=False):
    """As llm.c's data loaders read them, checks and all: `train_gpt2` and `train_llama3`."""
    header = np.fromfile(path, "<i4", 256)
    assert header[:2].tolist() == ([20240801, 7] if is_llama else [20240520, 1])
    assert not header[3:].any()
    tokens = np.fromfile(path, "<u4" if is_llama else "<u2", offset=1024)
    assert len(tokens) == header[2]
    return tokens.tolist()


def test_nanogpt(documents, run, tmp_path):
    """Its train.py maps train.bin and val.bin in the folder of a dataset."""
    exported = run(documents, "nanogpt")
    assert exported.files == [tmp_path / "bin/corpus/train.bin", tmp_path / "bin/corpus/val.bin"]
    assert (tmp_path / "bin/corpus/train.bin").read_bytes() == np.array(TRAIN, "<u2").tobytes()
    assert np.memmap(tmp_path / "bin/corpus/val.bin", np.uint16, "r").tolist() == [30, 31]
    assert "np.uint16" in exported.usage[0]
    with pytest.raises(UsageError, match="overwritten"):
        run(documents, "nanogpt")
    run(documents, "nanogpt", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "bin/corpus").iterdir()) == ["train.bin", "val.bin"]


def test_nanogpt_leaves_other_files_of_its_folder_alone(documents, run, tmp_path):
    (tmp_path / "bin/corpus").mkdir(parents=True)
    (tmp_path / "bin/corpus/prepare.py").write_text("mine")
    run(documents, "nanogpt", split="train")
    assert (tmp_path / "bin/corpus/prepare.py").read_text() == "mine"


def test_nanogpt_takes_a_folder_and_one_split_a_file(tmp_path, run):
    folder = write_tokens(tmp_path / "out", {("val", "web"): [[[1]]], ("validation", "web"): [[[2]]]})
    with pytest.raises(UsageError, match="two splits"):
        run(folder, "nanogpt")
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/corpus").write_text("a file")
    with pytest.raises(UsageError, match="is a file"):
        run(folder, "nanogpt", split="val")


def test_llmc(documents, run, tmp_path):
    exported = run(documents, "llmc")
    assert [path.name for path in exported.files] == ["corpus_train_000000.bin", "corpus_validation_000000.bin"]
    assert read_llmc(tmp_path / "bin/corpus_train_000000.bin") == TRAIN


@pytest.mark.parametrize("tokens_a_file", [1, 3, 14, 100])
def test_llmc_goes_on_in_the_next_file(documents, run, tmp_path, monkeypatch, tokens_a_file):
    monkeypatch.setattr(
        "gristmill.exports.arrays.LlmcLayout",
        lambda split, count, size: LlmcLayout(split, count, size, tokens_a_file),
    )
    run(documents, "llmc", split="train")
    files = sorted((tmp_path / "bin").iterdir())
    read = [read_llmc(path) for path in files]
    assert [len(ids) for ids in read[:-1]] == [tokens_a_file] * (len(files) - 1)
    assert list(itertools.chain(*read)) == TRAIN


def test_files_of_an_older_longer_set_do_not_stay(documents, run, tmp_path, monkeypatch):
    for tokens_a_file, overwrite in [(5, False), (7, True)]:
        monkeypatch.setattr(
            "gristmill.exports.arrays.LlmcLayout",
            lambda split, count, size, most=tokens_a_file: LlmcLayout(split, count, size, most),
        )
        run(documents, "llmc", split="train", overwrite=overwrite)
    assert list(itertools.chain(*map(read_llmc, sorted((tmp_path / "bin").glob("*.bin"))))) == TRAIN


def test_the_header_can_count_the_tokens_of_a_file():
    assert arrays.LLMC_TOKENS_A_FILE < 2**31


WIDE = [5, 65_535, 65_536, 128_255, 0]


@pytest.mark.parametrize("vocab_size", [None, 128_256])
def test_a_vocabulary_above_16_bits(tmp_path, run, vocab_size):
    """By the vocabulary, and where that is not known by the greatest id: uint32, as llm.c's Llama 3 takes it."""
    shards = {("train", "web"): [[WIDE[:2]], [WIDE[2:]]], ("validation", "web"): [[[7]]]}
    folder = write_tokens(tmp_path / "out", shards, id_type="uint32")
    exported = run(folder, "nanogpt", vocab_size=vocab_size)
    assert exported.files[0].read_bytes() == np.array(WIDE, "<u4").tobytes()
    assert exported.files[1].read_bytes() == np.array([7], "<u4").tobytes()
    assert all("np.uint32" in line for line in exported.usage)
    exported = export(folder, to="llmc", path=tmp_path / "llmc/x", vocab_size=vocab_size, backend="serial")
    assert [read_llmc(path, is_llama=True) for path in exported.files] == [WIDE, [7]]
    assert all("train_llama3" in line for line in exported.usage)


@given(
    documents=st.lists(st.lists(st.integers(0, 200_000), max_size=6), min_size=1, max_size=8),
    tokens_a_file=st.integers(1, 9),
)
@settings(max_examples=30, deadline=None)
def test_every_token_once_whatever_its_width(tmp_path_factory, documents, tokens_a_file):
    tokens = list(itertools.chain(*documents))
    if not tokens:
        return
    folder = tmp_path_factory.mktemp("wide")
    write_tokens(folder / "out", {("train", "web"): [documents]}, id_type="uint32")
    options = {"backend": "serial", "progress": False}
    [file] = export(folder / "out", to="nanogpt", path=folder / "nano", **options).files
    is_wide = max(tokens) >= 65_536
    assert np.fromfile(file, "<u4" if is_wide else "<u2").tolist() == tokens
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gristmill.exports.arrays.LlmcLayout", lambda *arguments: LlmcLayout(*arguments, tokens_a_file))
        files = export(folder / "out", to="llmc", path=folder / "llmc/x", **options).files
    assert list(itertools.chain(*(read_llmc(path, is_llama=is_wide) for path in files))) == tokens


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_ids_beyond_the_vocabulary_are_refused_and_leave_nothing(tmp_path, run, to):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[65_535]], [[65_536]]]}, id_type="uint32")
    with pytest.raises(GristmillError, match="token id 65536 does not fit"):
        run(folder, to, vocab_size=65_536)
    assert [path for path in (tmp_path / "bin").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_wide_columns_of_small_ids_are_fine(tmp_path, run, to):
    [path] = run(write_tokens(tmp_path / "out", {("train", "web"): [[[65_535, 1]]]}, id_type="uint32"), to).files
    assert path.read_bytes().endswith(b"\xff\xff\x01\x00")
