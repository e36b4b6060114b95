"""Texts as strings or as a column: the same answers from both."""

import gc
import weakref

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.texts import Texts


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
