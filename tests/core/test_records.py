"""Texts as strings or as a column: the same answers from both."""

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import (
    ORIGIN_TYPE,
    SPLIT,
    RuleValues,
    SourceFile,
    Texts,
    count_values,
    documents,
    is_for_training,
    make_origins,
    select_rows,
)

FILE = SourceFile(path="/data/a.jsonl", relative="a.jsonl", num_bytes=3, version="1", id=5)


def test_origins_of_one_file_and_of_many():
    positions = pa.array([3, 4])
    assert make_origins(7, positions).type == ORIGIN_TYPE
    assert make_origins(7, positions).to_pylist()[1] == {"file": 7, "position": 4, "part": 0}
    origins = make_origins(pa.array([1, 2], pa.uint64()), positions, pa.array([0, 9], pa.uint32()))
    assert origins.to_pylist()[1] == {"file": 2, "position": 4, "part": 9}


def test_records_without_splits_are_for_training():
    assert is_for_training(documents(["a", "b"])).tolist() == [True, True]
    assert is_for_training(documents(["a", "b"], **{SPLIT: ["train", "test"]})).tolist() == [True, False]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_bytes_of_texts_are_counted_in_slices_too(kind):
    column = pa.array(["ab", None, "", "äb"], kind)
    assert [count_values(column), count_values(column[1:]), count_values(column[:0])] == [5, 3, 0]


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.uint16())])
def test_values_of_lists_are_counted(kind):
    column = pa.array([[1, 2], [], [3]], kind)
    assert [count_values(column), count_values(column[1:])] == [3, 1]


def test_thresholds_for_each_row_and_for_all():
    by_row = RuleValues(np.array([1.5, 2.5]), np.array([2.0, 2.25]))
    assert [by_row.at(0), by_row.at(1)] == [(1.5, 2), (2.5, 2.25)]
    assert RuleValues(pa.array(["de", "en"]), "en").at(0) == ("de", "en")


def test_identity_of_a_file_is_its_version_or_its_content():
    changed = SourceFile(path="/data/a.jsonl", relative="a.jsonl", num_bytes=3, version="2", id=5)
    moved = SourceFile(path="/other/a.jsonl", relative="a.jsonl", num_bytes=3, version="1", id=5)
    assert FILE.identity != changed.identity
    assert FILE.identity == moved.identity


@pytest.mark.parametrize(("split", "is_held_out"), [("", False), ("train", False), ("test", True)])
def test_files_of_other_splits_are_held_out(split, is_held_out):
    file = SourceFile(path="a", relative="a", num_bytes=1, version="1", id=1, split=split)
    assert file.is_held_out is is_held_out


@given(st.lists(st.text(max_size=20), max_size=10), st.data())
def test_strings_and_column_give_the_same(strings, data):
    is_kept = np.array([data.draw(st.booleans()) for _ in strings], dtype=bool)
    for texts in (Texts(strings), Texts(pa.array(strings, pa.large_string()))):
        assert len(texts) == len(strings)
        assert texts.strings == strings
        assert texts.sizes.dtype == np.int64
        assert texts.sizes.tolist() == [len(text.encode()) for text in strings]
        assert texts.num_bytes == sum(len(text.encode()) for text in strings)
        kept = texts.filter(is_kept)
        assert kept.strings == [text for text, keep in zip(strings, is_kept, strict=True) if keep]
        assert kept.sizes.tolist() == texts.sizes[is_kept].tolist()


def test_a_column_is_kept_as_it_came():
    column = pa.array(["a"], pa.large_string())
    assert Texts(column).column is column
    assert Texts(["a"]).column is None


def test_texts_are_freed_without_a_collection_of_garbage():
    texts = Texts(["a", "ü"])
    chosen = texts.filter(np.array([True, False]))
    references = [weakref.ref(texts), weakref.ref(chosen)]
    assert chosen.sizes.tolist() == [1]
    gc.disable()
    try:
        del texts, chosen
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


TEXTS = st.lists(st.text(max_size=5), max_size=40)


@settings(max_examples=60)
@given(TEXTS, st.integers(0, 8), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=8), st.booleans())
def test_selects_what_arrow_selects(texts, start, runs, has_null):
    batch = pa.record_batch(
        {
            "text": pa.array([*texts[:-1], None] if has_null and texts else texts, pa.large_string()),
            "record": pa.array([text.encode() for text in texts], pa.large_binary()),
            "number": pa.array(range(len(texts)), pa.int64()),
            "words": pa.array([[text] for text in texts], pa.list_(pa.string())),
        }
    ).slice(start)
    is_kept = np.array([kept for kept, size in runs for _ in range(size)], bool)[: batch.num_rows]
    is_kept = np.append(is_kept, np.ones(batch.num_rows - len(is_kept), bool))
    selected = select_rows(batch, is_kept)
    selected.validate(full=True)
    expected = batch if is_kept.all() else batch.filter(pa.array(is_kept))
    assert selected.equals(expected)
    assert selected[:1].nbytes == expected[:1].nbytes  # samples of dropped records say it
    assert selected.schema == batch.schema
