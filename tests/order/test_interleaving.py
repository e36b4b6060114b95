"""Each source has its share of every beginning, and all records come once and in their order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.order.interleaving import Interleaving

COUNTS = st.lists(st.integers(0, 400), min_size=1, max_size=12).filter(any)


@settings(max_examples=200, deadline=None)
@given(counts=COUNTS)
def test_every_beginning_holds_each_share_to_less_than_one_record(counts):
    total = sum(counts)
    sources = Interleaving(counts).sources(0, [0] * len(counts), total)
    drawn = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)
    assert drawn[-1].tolist() == counts
    shares = np.arange(1, total + 1)[:, None] * np.array(counts) / total
    assert np.abs(drawn - shares).max() < 1


@settings(max_examples=100, deadline=None)
@given(counts=COUNTS, step=st.integers(1, 500))
def test_pieces_are_pieces_of_the_whole(counts, step):
    order = Interleaving(counts)
    whole = order.sources(0, [0] * len(counts), order.num_records)
    borders = order.borders(step)
    pieces = [
        order.sources(first, drawn, min(step, order.num_records - first))
        for first, drawn in zip(range(0, order.num_records, step), borders, strict=False)
    ]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert borders[-1].tolist() == counts


def test_large_numbers_are_exact_or_refused():
    order = Interleaving([2_000_000_000, 999_999_999, 1])
    drawn = [1_999_999_998, 999_999_999, 0]
    assert order.sources(2_999_999_997, drawn, 3).tolist() in ([0, 2, 0], [2, 0, 0], [0, 0, 2])
    with pytest.raises(UsageError, match="cannot be interleaved"):
        Interleaving([2_000_000_000, 2_000_000_000])
