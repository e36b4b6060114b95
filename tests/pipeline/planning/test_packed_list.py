"""Packed lists give back what they were made of."""

import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.records import SourceFile
from gristmill.pipeline.planning import packed_list
from gristmill.pipeline.planning.packed_list import PackedList
from gristmill.pipeline.planning.units import UNIT_BYTES, make_units


class Shared:
    """Cannot be pickled: an object that is not shared would be an error."""

    def __reduce__(self):
        raise TypeError("pickled")


@dataclass(frozen=True)
class Item:
    number: int
    shared: Shared


@given(st.lists(st.integers(0, 3)), st.integers(1, 5))
def test_the_same_items_and_the_same_shared_objects(numbers, packed_items):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_list, "_PACKED_ITEMS", packed_items)
        shared = [Shared() for _ in range(4)]
        items = [Item(position, shared[number]) for position, number in enumerate(numbers)]
        packed = PackedList(iter(items), shared_types=(Shared,))
        for _ in range(2):
            assert list(packed) == items
            assert all(ours.shared is theirs.shared for ours, theirs in zip(packed, items, strict=True))
        assert len(packed) == len(items)
        assert all(item in packed for item in items)


def test_memory_of_units():
    """4,096 units of one file, which take 1.3 MB as objects."""
    file = SourceFile("/a.jsonl", "a.jsonl", 4096 * UNIT_BYTES, "1", 1)
    sizes = [4 << 20] * (4096 * 16)
    units = PackedList(make_units([file], lambda file: sizes, lambda file: None), shared_types=(SourceFile,))
    tracemalloc.start()
    try:
        packed = PackedList(units, shared_types=(SourceFile,))
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
    assert list(packed) == list(units)
