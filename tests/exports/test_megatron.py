"""Megatron's files, read by a reader that was written from the layout of the bytes alone.

Equality with what the `IndexedDatasetBuilder` of megatron-core 0.16.1 writes was tried by hand for uint16 and int32; it
is no dependency of the tests.
"""

import struct

import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import GristmillError, UsageError
from gristmill.exports.megatron import id_type


def read_megatron(prefix):
    """`(type, documents)` of a prefix, checking every byte of the index."""
    index, data = prefix.with_suffix(".idx").read_bytes(), prefix.with_suffix(".bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, num_sequences, num_documents = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    assert num_documents == num_sequences + 1
    dtype = {8: "<u2", 4: "<i4"}[code]
    place = 34
    lengths = np.frombuffer(index, "<i4", num_sequences, place)
    place += 4 * num_sequences
    starts = np.frombuffer(index, "<i8", num_sequences, place)
    place += 8 * num_sequences
    first = np.frombuffer(index, "<i8", num_documents, place)
    place += 8 * num_documents
    assert place == len(index)
    assert first.tolist() == list(range(num_sequences + 1))
    documents = [np.frombuffer(data, dtype, length, start) for length, start in zip(lengths, starts, strict=True)]
    assert sum(lengths) * np.dtype(dtype).itemsize == len(data)
    return dtype, [document.tolist() for document in documents]


def test_bytes_of_a_small_dataset(tmp_path, run):
    run(write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2, 3], [4]], [[5, 6]]]}), "megatron")
    assert (tmp_path / "bin/corpus_train.bin").read_bytes() == bytes.fromhex("0100 0200 0300 0400 0500 0600")
    assert (tmp_path / "bin/corpus_train.idx").read_bytes() == bytes.fromhex(
        "4d4d494449445800 00"  # MMIDIDX
        "0100000000000000"  # version
        "08"  # uint16
        "0300000000000000"  # sequences
        "0400000000000000"  # documents + 1
        "03000000 01000000 02000000"
        "0000000000000000 0600000000000000 0800000000000000"
        "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
    )


def test_bytes_of_wide_ids(tmp_path, run):
    run(write_tokens(tmp_path / "out", {("train", "web"): [[[1, 70_000]]]}, id_type="uint32"), "megatron")
    assert (tmp_path / "bin/corpus_train.bin").read_bytes() == bytes.fromhex("01000000 70110100")
    assert (tmp_path / "bin/corpus_train.idx").read_bytes()[17] == 4


def test_documents_of_all_sources_in_order(documents, run, tmp_path):
    exported = run(documents, "megatron")
    train = [[5, 6, 7], [8], [9, 10], [11, 12], [20], [21, 22, 23, 24, 25]]
    assert read_megatron(tmp_path / "bin/corpus_train") == ("<u2", train)
    assert read_megatron(tmp_path / "bin/corpus_validation") == ("<u2", [[30, 31]])
    assert exported.rows == {"train": 6, "validation": 1}
    assert exported.usage[0] == f"--data-path {tmp_path}/bin/corpus_train"
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == sorted(path.name for path in exported.files)


def test_one_split_and_one_source(documents, run, tmp_path):
    exported = run(documents, "megatron", split="train", source="books")
    assert [path.name for path in exported.files] == ["corpus_train.bin", "corpus_train.idx"]
    assert read_megatron(tmp_path / "bin/corpus_train")[1] == [[20], [21, 22, 23, 24, 25]]


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_many_shards_by_many_workers(many, run, tmp_path, backend):
    folder, expected = many
    run(folder, "megatron", backend=backend, workers=3)
    assert read_megatron(tmp_path / "bin/corpus_train")[1] == [document.tolist() for document in expected]


def test_the_vocabulary_decides_the_type(documents, run, tmp_path):
    assert (id_type(65_499), id_type(65_500)) == (np.uint16, np.int32)
    run(documents, "megatron", vocab_size=65_500)
    assert read_megatron(tmp_path / "bin/corpus_train")[0] == "<i4"


@pytest.mark.parametrize(("greatest", "dtype"), [(65_498, "<u2"), (65_499, "<i4")])
def test_without_a_vocabulary_the_greatest_id_decides(tmp_path, run, greatest, dtype):
    run(write_tokens(tmp_path / "out", {("train", "web"): [[[1]], [[greatest]]]}), "megatron")
    assert read_megatron(tmp_path / "bin/corpus_train") == (dtype, [[1], [greatest]])


@pytest.mark.parametrize(("vocab_size", "id"), [(50_000, 70_000), (None, 2**31)])
def test_ids_that_do_not_fit_are_refused_and_leave_nothing(tmp_path, run, vocab_size, id):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[1]], [[2, id]]]}, id_type="uint32")
    with pytest.raises(GristmillError, match=f"token id {id} does not fit"):
        run(folder, "megatron", vocab_size=vocab_size)
    assert list((tmp_path / "bin").iterdir()) == []


def test_empty_documents_are_empty_sequences(tmp_path, run):
    run(write_tokens(tmp_path / "out", {("train", "web"): [[[], [1, 2], []], [[]], [[3]]]}), "megatron")
    assert read_megatron(tmp_path / "bin/corpus_train")[1] == [[], [1, 2], [], [], [3]]


def test_a_split_without_tokens_is_left_out(tmp_path, run):
    shards = {("train", "web"): [[[1]]], ("validation", "web"): [[[]]]}
    exported = run(write_tokens(tmp_path / "out", shards), "megatron")
    assert [path.name for path in exported.files] == ["corpus_train.bin", "corpus_train.idx"]


def test_nothing_to_export(tmp_path, run):
    with pytest.raises(UsageError, match="nothing to export"):
        run(write_tokens(tmp_path / "out", {("train", "web"): [[[]]]}), "megatron")


@pytest.mark.parametrize("to", ["megatron", "nanogpt", "llmc"])
def test_packed_rows_are_refused(tmp_path, run, to):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[[1, 2], [3]]]]}, row_length=4)
    with pytest.raises(UsageError, match="packed into rows of 4 tokens"):
        run(folder, to)


@pytest.mark.parametrize("to", ["megatron", "nanogpt", "llmc"])
def test_a_loss_mask_is_not_lost_in_silence(tmp_path, run, to):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2]]]}, loss_masks=True)
    with pytest.raises(UsageError, match="loss_mask"):
        run(folder, to)
