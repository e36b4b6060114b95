"""Rows with loss masks: their one form on disk, and what can be wrong with them."""

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.streams import with_manifest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError
from gristmill.core.records import documents
from gristmill.shards.canonical import canonicalize_batch, canonicalize_schema
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.token_rows import (
    find_row_problem,
    is_masked,
    make_document_rows,
    num_trained_tokens,
    rows_schema,
)
from gristmill.shards.verify import verify

BITS = pa.list_(pa.bool_())


def chats(ids, masks):
    """Tokenized chats, as `tokenize` gives them."""
    batch = documents(["" for _ in ids]).select(["origin"])
    batch = batch.append_column("input_ids", pa.array(ids, pa.list_(pa.uint16())))
    return batch.append_column("loss_mask", pa.array(masks, BITS))


def packed(masks, lengths, row_length=4):
    schema = rows_schema(pa.uint16(), row_length, masked=True)
    columns = {
        "input_ids": [[7] * row_length for _ in masks],
        "lengths": lengths,
        "loss_mask": masks,
        "origins": [[{"file": 1, "position": 2, "part": 0}] * len(some) for some in lengths],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def test_one_chat_a_row():
    rows = make_document_rows(chats([[1, 2, 3], [], [4]], [[False, True, True], [], [True]]))
    assert rows.schema == rows_schema(pa.uint16(), None, masked=True)
    assert rows.column("loss_mask").to_pylist() == [[False, True, True], [], [True]]
    assert rows.column("lengths").to_pylist() == [[3], [0], [1]]
    assert num_trained_tokens(rows) == 3
    assert num_trained_tokens(rows.slice(1)) == 1
    assert find_row_problem(rows, vocab_size=5) is None


def test_a_mask_of_another_length_is_refused():
    for mask in ([[True], [True]], [[True, True], [None]], [None, [True]]):
        with pytest.raises(UsageError, match="loss_mask"):
            make_document_rows(chats([[1, 2], [3]], mask))


def test_documents_may_have_a_column_of_that_name():
    assert not is_masked(pa.schema({"text": pa.string(), "loss_mask": pa.string()}))
    with pytest.raises(UsageError, match="loss_mask"):
        is_masked(pa.schema({"input_ids": pa.list_(pa.uint16()), "loss_mask": pa.string()}))


def test_what_is_wrong_with_masks_is_said():
    assert find_row_problem(packed([[True, False, True, False]], [[2, 1]]), 10) is None
    padding = packed([[True] * 4, [True, True, True, False]], [[4], [2]])
    assert "row 1 of a batch trains its padding" in find_row_problem(padding, 10)
    rows = make_document_rows(chats([[1, 2], [3]], [[True, True], [True]]))
    other = pa.array([[True, True], [True, False]], BITS)
    wrong = rows.set_column(rows.schema.get_field_index("loss_mask"), "loss_mask", other)
    assert "row 1 of a batch does not have" in find_row_problem(wrong, 10)


@pytest.mark.parametrize("row_length", [3, 5, 8, 11])
def test_equal_masks_are_equal_bytes(row_length):
    """Bits that no token has are zero, whatever the arrays were cut out of."""
    masks = np.random.default_rng(row_length).random((7, row_length)) < 0.5
    schema = canonicalize_schema(rows_schema(pa.uint16(), row_length, masked=True))
    alone = packed(masks[2:5].tolist(), [[row_length]] * 3, row_length)
    sliced = packed(masks.tolist(), [[row_length]] * 7, row_length).slice(2, 3)
    found = [canonicalize_batch(batch, schema).column("loss_mask").values for batch in (alone, sliced)]
    assert found[0].offset == found[1].offset == 0
    first, second = (values.buffers()[1].to_pybytes() for values in found)
    assert first == second == np.packbits(masks[2:5].ravel(), bitorder="little").tobytes()


ROWS = {("train", "web"): [[[[1, 2, 3], [4]], [[5, 6]]]]}


@pytest.mark.parametrize(("loss_masks", "kind"), [(True, "tokens"), (False, "chats")])
def test_a_kind_that_does_not_fit_the_columns_is_found(tmp_path, loss_masks, kind):
    folder = write_tokens(tmp_path / "out", ROWS, row_length=4, loss_masks=loss_masks)
    assert verify(folder)
    with_manifest(folder, kind=kind)
    problems = verify(folder).problems
    assert ("manifest.json", "kind") in [(problem.path, problem.kind) for problem in problems]


def test_a_wrong_number_of_trained_tokens_is_found(tmp_path):
    folder = write_tokens(tmp_path / "out", ROWS, row_length=4, loss_masks=True)
    manifest = load_manifest(folder)
    [shard] = manifest.splits["train"]["web"]
    content = b"".join(dump_manifest(manifest))
    assert content.count(b'"trained_tokens": 3') == 1
    changed = type(shard)(**{name: getattr(shard, name) for name in shard.__struct_fields__} | {"trained_tokens": 4})
    with_manifest(folder, splits={"train": {"web": [changed]}})
    assert any("holds 3 trained tokens" in problem.message for problem in verify(folder).problems)


def test_manifests_of_other_kinds_say_nothing_of_trained_tokens(tmp_path):
    folder = write_tokens(tmp_path / "out", ROWS, row_length=4)
    assert b"trained" not in (folder / "manifest.json").read_bytes()
