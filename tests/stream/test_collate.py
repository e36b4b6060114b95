"""Every array of a batch against code that works token by token."""

import numpy as np
import pytest
from gristmill_testing.streams import ROW_LENGTH, packed_rows, ragged_rows, write_packed
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.collate import MATRICES

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


def test_masked_and_plain_rows_in_one_batch(tmp_path):
    chats = write_packed(tmp_path / "chats", {"chats": [6]}, loss_masks=True)
    plain = write_packed(tmp_path / "plain", {"web": [6]})
    batch = Stream({"chats": (chats, 1), "plain": (plain, 1)}).rows(0, 12)
    is_learnt = batch["labels"] != -100
    for row, source in enumerate(batch.sources):
        learnt = is_learnt[row, : batch.tokens[row]]
        assert learnt.all() if source == 1 else learnt.tolist() == [place % 2 == 1 for place in range(len(learnt))]


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


def test_empty_rows_fill_up_all_arrays(packed):
    batch = Stream(packed, rows=1, collate=Collate(fields=(*FIELDS, "row_mask"), pad_id=5)).rows(0, 3)
    assert batch["row_mask"].tolist() == [True, False, False]
    assert (batch["input_ids"][1:] == 5).all()
    assert (batch["document_ids"][1:] == -1).all()
    assert batch["cu_seqlens"][-3:].tolist() == [12, 24, 36]
