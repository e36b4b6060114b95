"""Groups by key: every repeated key is marked, and groups are the same with and without the others."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.steps.deduplicate.candidates import group_by_key, mark_repeated

KEYS = st.lists(st.integers(0, 12) | st.integers(2**64 - 9, 2**64 - 1), max_size=40)


@settings(max_examples=60)
@given(KEYS, st.sampled_from([1, 2**20, 2**57]))
@example([], 1)
def test_groups_have_all_documents_of_repeated_keys_in_order(keys, factor):
    documents = np.arange(len(keys), dtype=np.int64)[::-1] * factor
    all_keys = np.array(keys, np.uint64)
    expected = {
        key: sorted(document for other, document in zip(keys, documents.tolist(), strict=True) if other == key)
        for key in sorted(set(keys))
        if keys.count(key) > 1
    }
    is_repeated = mark_repeated(all_keys)
    for groups in (group_by_key(all_keys, documents), group_by_key(all_keys[is_repeated], documents[is_repeated])):
        members = np.split(groups.documents, groups.starts[1:-1]) if len(groups.documents) else []
        assert [group.tolist() for group in members] == list(expected.values())
        assert groups.keys.tolist() == [key for key, group in expected.items() for _ in group]


def test_few_other_keys_are_marked():
    keys = np.random.default_rng(7).integers(0, 2**64, 10_000, dtype=np.uint64, endpoint=False)
    assert mark_repeated(keys).mean() == pytest.approx(0.2, abs=0.15)
