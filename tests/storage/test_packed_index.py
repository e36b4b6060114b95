"""The packed index answers as a dictionary does."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.storage.listing import packed_index
from gristmill.storage.listing.packed_index import PackedIndex


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2**62))))
def test_as_a_dictionary(pairs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_index, "_MIN_RECENT", 3)
        index, expected = PackedIndex(), {}
        for name, number in pairs:
            index[str(name)] = expected[str(name)] = number
            assert index.get(str(name)) == number
        assert {name: index.get(name) for name in expected} == expected
        assert index.get("another") is None
        assert sorted(index.values()) == sorted(expected.values())


def test_hashes_that_end_with_zeros(monkeypatch):
    """Arrays of bytes do not tell trailing zeros from none; all 16 bytes count."""
    hashes = {"a": bytes(16), "b": b"\1" + bytes(15), "c": bytes(15) + b"\1", "d": b"\1" * 16}
    monkeypatch.setattr(packed_index, "_hash_name", hashes.__getitem__)
    monkeypatch.setattr(packed_index, "_MIN_RECENT", 0)
    index = PackedIndex()
    names = list(hashes)
    random.Random(1).shuffle(names)
    for number, name in enumerate(names):
        index[name] = number
    assert [index.get(name) for name in names] == [0, 1, 2, 3]
    assert np.array_equal(np.sort(index.values()), np.arange(4))


def test_memory(monkeypatch):
    """A dictionary of 10,000 such names takes 2.5 MB."""
    monkeypatch.setattr(packed_index, "_MIN_RECENT", 256)
    index = PackedIndex()
    tracemalloc.start()
    try:
        for number in range(10_000):
            index[f"{number:032x}"] = number << 20
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
