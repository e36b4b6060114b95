"""Every array of a batch against code that works token by token."""

import numpy as np
import pytest
from gristmill_testing.streams import ROW_LENGTH, packed_rows, ragged_rows
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.collate import MATRICES
from gristmill.stream.examine import prove

FIELDS = (*MATRICES, "cu_seqlens")


def slow_batch(rows, width, *, masked=False, shifted=False, learn_first=True, pad_id=0):
    """`rows`: lists of documents."""
    arrays = {name: [] for name in MATRICES}
    ends = [0]
    for number, documents in enumerate(rows):
        ids = [token for document in documents for token in document]
        padding = width - len(ids)
        labels = list(ids)
        positions, numbers = [], []
        for index, document in enumerate(documents):
            if not learn_first:
                labels[len(positions)] = -100
            positions += range(len(document))
            numbers += [index] * len(document)
            ends.append(number * width + len(positions))
        if masked:
            labels = [label if place % 2 else -100 for place, label in enumerate(labels)]
        if shifted:
            labels = [*labels[1:], -100]
        if padding:
            ends.append((number + 1) * width)
        arrays["input_ids"].append(ids + [pad_id] * padding)
        arrays["labels"].append(labels + [-100] * padding)
        arrays["position_ids"].append([*positions, *range(padding)])
        arrays["document_ids"].append(numbers + [-1] * padding)
        arrays["attention_mask"].append([1] * len(ids) + [0] * padding)
    return {**arrays, "cu_seqlens": ends, "max_seqlen": max(np.diff(ends))}


def assert_equal(batch, slow):
    for name, values in slow.items():
        assert np.array_equal(batch[name], values), name
    assert list(batch) == [name for name in (*FIELDS, "max_seqlen") if name in batch]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("id_type", ["uint16", "uint32"])
@pytest.mark.parametrize("labels", ["same", "shifted"])
@pytest.mark.parametrize("learn_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_packed_rows(tmp_path, dtype, id_type, labels, learn_first, masked):
    rows = packed_rows(np.random.default_rng(1), 9)
    folder = write_tokens(
        tmp_path / "out", {("train", "web"): [rows]}, row_length=ROW_LENGTH, id_type=id_type, loss_masks=masked
    )
    collate = Collate(fields=FIELDS, dtype=dtype, labels=labels, learn_first_token=learn_first)
    batch = Stream(folder, shuffle=False, collate=collate).rows(0, 9)
    assert_equal(
        batch, slow_batch(rows, ROW_LENGTH, masked=masked, shifted=labels == "shifted", learn_first=learn_first)
    )
    assert {batch[name].dtype.name for name in MATRICES} == {dtype}
    assert batch["cu_seqlens"].dtype == np.int32
    assert batch.tokens.tolist() == [sum(map(len, row)) for row in rows]


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("masked", [True, False])
def test_rows_of_different_lengths(tmp_path, multiple, masked):
    rows = ragged_rows(np.random.default_rng(2), 13)
    folder = write_tokens(tmp_path / "out", {("train", "web"): [rows[:5], rows[5:]]}, loss_masks=masked)
    collate = Collate(fields=FIELDS, pad_to_multiple=multiple, pad_id=9)
    stream = Stream(folder, shuffle=False, collate=collate)
    for start, stop in [(0, 4), (3, 13), (12, 13)]:
        chosen = rows[start:stop]
        width = -(-max(map(len, chosen)) // multiple) * multiple
        slow = slow_batch([[row] for row in chosen], width, masked=masked, pad_id=9)
        assert_equal(stream.rows(start, stop), slow)


def test_cu_seqlens_of_a_fixed_size(packed):
    plain = Stream(packed, collate=Collate(fields=("input_ids", "cu_seqlens"))).rows(0, 4)
    fixed = Stream(packed, collate=Collate(fields=("input_ids", "cu_seqlens"), cu_seqlens_size=64)).rows(0, 4)
    ends = plain["cu_seqlens"].tolist()
    assert fixed["cu_seqlens"].tolist() == ends + [4 * ROW_LENGTH] * (64 - len(ends))
    with pytest.raises(UsageError, match="cu_seqlens_size"):
        Stream(packed, collate=Collate(fields=("input_ids", "cu_seqlens"), cu_seqlens_size=4)).rows(0, 4)


@pytest.mark.parametrize("row_length", [ROW_LENGTH, None], ids=["packed", "unpacked"])
@pytest.mark.parametrize("together", ["datasets", "sources"])
@pytest.mark.parametrize("shifted", [False, True])
def test_masked_and_plain_rows_in_one_batch(tmp_path, row_length, together, shifted):
    """No mask: all is learnt. With one, every second token of these."""
    rng = np.random.default_rng(4)
    make = packed_rows if row_length else ragged_rows
    chats, plain = make(rng, 9), make(rng, 9)
    for name, rows, masks in (("chats", chats, True), ("plain", plain, False)):
        write_tokens(tmp_path / name, {("train", name): [rows]}, row_length=row_length, loss_masks=masks)
    data = {name: (tmp_path / name, 1) for name in ("chats", "plain")}
    if together == "sources":  # each row once, from one lane
        data = {name: folder for name, (folder, _) in data.items()}
    collate = Collate(fields=FIELDS, labels="shifted" if shifted else "same", pad_id=9)
    batch = Stream(data, collate=collate, shuffle=False).rows(0, 18)
    assert np.bincount(batch.sources).tolist() == [9, 9]
    order = {0: iter(chats), 1: iter(plain)}
    width = batch["input_ids"].shape[1]
    for number, source in enumerate(batch.sources):
        row = next(order[source])
        slow = slow_batch([row if row_length else [row]], width, masked=source == 0, shifted=shifted, pad_id=9)
        for name in MATRICES:
            assert batch[name][number].tolist() == list(slow[name][0]), (number, name)


@pytest.mark.parametrize("lengths", [[3, 3, 3, 3], [4, 2, 1, 5]])
def test_masks_that_do_not_fit_are_named(tmp_path, lengths):
    rows = [[1] * length for length in (2, 4, 5, 1)]
    folder = write_tokens(tmp_path / "out", {("train", "web"): [rows]}, loss_masks=True, mask_lengths=lengths)
    with pytest.raises(DamagedDatasetError, match=r"shard-00000\.arrow"):
        Stream(folder, rows=4).rows(0, 4)


def test_rows_that_cannot_stand_together_are_refused(tmp_path, packed):
    longer = packed_rows(np.random.default_rng(0), 3, row_length=16)
    other = write_tokens(tmp_path / "other", {("train", "web"): [longer]}, row_length=16)
    ragged = write_tokens(tmp_path / "ragged", {("train", "web"): [[[1, 2]]]})
    with pytest.raises(UsageError, match="rows of 12 and b rows of 16"):
        Stream({"a": (packed, 1), "b": (other, 1)})
    with pytest.raises(UsageError, match="different lengths"):
        Stream({"a": (packed, 1), "b": (ragged, 1)})


@pytest.mark.parametrize(
    "options",
    [{"fields": ("ids",)}, {"fields": ("labels",)}, {"dtype": "int16"}, {"labels": "next"}, {"pad_to_multiple": 0}],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(UsageError):
        Collate(**options)


def test_a_rank_without_rows_is_as_wide_as_the_others(tmp_path):
    rows = [[1] * length for length in (3, 9, 4, 7, 2)]
    folder = write_tokens(tmp_path / "out", {("train", "web"): [rows]})
    for multiple, widths in ((1, [9, 7, 9, 9]), (8, [16, 8, 16, 16])):
        stream = Stream(folder, rows=5, shuffle=False, collate=Collate(fields=FIELDS, pad_to_multiple=multiple))
        batches = [stream.batch(0, 3, rank, 4) for rank in range(4)]
        assert [batch["input_ids"].shape for batch in batches] == [(3, width) for width in widths]
        assert [int(batch.row_mask.sum()) for batch in batches] == [3, 2, 0, 0]
        assert (batches[3]["labels"] == -100).all()
        assert batches[3].next_row == 5
        assert stream.rows(8, 10)["input_ids"].shape == (2, multiple)  # behind the end there is nothing to go by


def test_a_pad_id_is_of_all_padding(packed):
    plain, chosen = Stream(packed, rows=50), Stream(packed, rows=50, collate=Collate(pad_id=7))
    before, after = plain.rows(40, 52), chosen.rows(40, 52)
    is_padding = np.arange(ROW_LENGTH) >= before.tokens[:, None]
    assert is_padding[:10].any()
    assert (after["input_ids"][is_padding] == 7).all()
    assert (after["input_ids"][~is_padding] == before["input_ids"][~is_padding]).all()
    assert (after["labels"] == before["labels"]).all()


def test_empty_rows_fill_up_all_arrays(packed):
    batch = Stream(packed, rows=1, collate=Collate(fields=(*FIELDS, "row_mask"), pad_id=5)).rows(0, 3)
    assert batch["row_mask"].tolist() == [True, False, False]
    assert (batch["input_ids"][1:] == 5).all()
    assert (batch["document_ids"][1:] == -1).all()
    assert batch["cu_seqlens"][-3:].tolist() == [12, 24, 36]


def slow_aligned_batch(rows, width, align, *, masked, shifted):
    """Documents one by one: each with its own labels, and behind it padding up to a multiple."""
    arrays = {name: [] for name in MATRICES}
    ends = [0]
    for number, documents in enumerate(rows):
        row = {name: [] for name in MATRICES}
        place = 0  # in the stored row, where every second token is trained
        for index, document in enumerate(documents):
            labels = [token if not masked or (place + k) % 2 else -100 for k, token in enumerate(document)]
            place += len(document)
            labels[0] = -100
            padding = -len(document) % align
            row["input_ids"] += document + [0] * padding
            row["labels"] += ([*labels[1:], -100] if shifted else labels) + [-100] * padding
            row["position_ids"] += range(len(document) + padding)
            row["document_ids"] += [index] * len(document) + [-1] * padding
            row["attention_mask"] += [1] * len(document) + [0] * padding
            ends.append(number * width + len(row["input_ids"]))
        rest = width - len(row["input_ids"])
        if rest:
            ends.append((number + 1) * width)
        for name, filler in {"input_ids": 0, "labels": -100, "document_ids": -1, "attention_mask": 0}.items():
            row[name] += [filler] * rest
        row["position_ids"] += range(rest)
        for name, values in row.items():
            arrays[name].append(values)
    return {**arrays, "cu_seqlens": ends, "max_seqlen": max(np.diff(ends))}


@pytest.mark.parametrize("labels", ["same", "shifted"])
@pytest.mark.parametrize("masked", [True, False])
def test_aligned_documents(tmp_path, labels, masked):
    rng = np.random.default_rng(3)
    lengths = [[5, 3, 4], [1, 1, 1, 1, 1, 1], [24], [8, 16], [20, 4], [7], [4, 4, 4, 4, 4, 4]]
    rows = [[rng.integers(1, 60_000, length).tolist() for length in row] for row in lengths]
    folder = write_tokens(tmp_path / "out", {("train", "web"): [rows]}, row_length=24, loss_masks=masked)
    stream = Stream(folder, shuffle=False, epochs=1, collate=Collate(fields=FIELDS, labels=labels, align=4))
    slow = slow_aligned_batch(rows, 24, 4, masked=masked, shifted=labels == "shifted")
    batch = stream.rows(0, 7)
    assert_equal(batch, slow)
    assert all(end % 4 == 0 for end in batch["cu_seqlens"].tolist())
    assert batch.tokens.tolist() == [sum(row) for row in lengths]
    assert prove(stream, [2, 1], [0], [2])
    few = Stream(folder, shuffle=False, collate=Collate(align=4, fields=("input_ids",))).rows(0, 7)
    assert few["input_ids"].tolist() == slow["input_ids"]


def test_rows_without_space_for_alignment_are_refused(tmp_path):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[[1, 2, 3], [4, 5, 6, 7, 8]]]]}, row_length=8)
    with pytest.raises(UsageError, match="multiples of 4"):
        Stream(folder, collate=Collate(align=4)).rows(0, 1)


def test_flattened_rows_are_those_of_the_collator_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    rows = [[[7, 8, 9], [10, 11]], [[12], [13, 14, 15, 16]], [[17, 18, 19, 20, 21]]]
    folder = write_tokens(tmp_path / "out", {("train", "web"): [rows]}, row_length=5)
    fields = ("input_ids", "labels", "position_ids", "cu_seqlens")
    stream = Stream(folder, shuffle=False, epochs=1, collate=Collate(fields=fields, flatten=True))
    [batch] = stream.batches(3)
    features = [{"input_ids": document} for row in rows for document in row]
    expected = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="np")(features)
    assert batch.keys() == expected.keys() - {"attention_mask"}
    for name, value in batch.items():
        assert np.array_equal(value, expected[name]), name
        assert np.shape(value) == np.shape(expected[name])
    assert batch.row_mask.tolist() == [True] * 3


def test_flattened_rows_are_the_same_numbers(tmp_path):
    rng = np.random.default_rng(6)
    folder = write_tokens(tmp_path / "out", {("train", "web"): [packed_rows(rng, 9)]}, row_length=ROW_LENGTH)
    plain, flat = (
        Stream(folder, seed=1, epochs=1, collate=Collate(fields=FIELDS, learn_first_token=False, flatten=flatten))
        for flatten in (False, True)
    )
    for batch, flattened in zip(plain.batches(4), flat.batches(4), strict=True):
        for name in MATRICES:
            assert np.array_equal(batch[name].reshape(1, -1), flattened[name])
        assert np.array_equal(batch["cu_seqlens"], flattened["cu_seq_lens_q"])
        assert batch["max_seqlen"] == flattened["max_length_k"]
    with pytest.raises(UsageError, match="position_ids"):
        Collate(flatten=True)
