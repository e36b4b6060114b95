import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.sample_batches import documents, texts
from gristmill.core.seeds import find_ranges
from gristmill.steps import Shuffle

WORDS = [str(number) for number in range(2000)]


@given(st.permutations(range(40)), st.integers(1, 9))
def test_order_depends_neither_on_arrival_nor_on_buckets(arrival, num_buckets):
    batch = documents(WORDS[:40])
    whole = Shuffle().sort(batch, seed=5)
    arrived = batch.take(pa.array(arrival))
    assert Shuffle().sort(arrived, seed=5).equals(whole)
    buckets = find_ranges(Shuffle().keys(arrived, 5), num_buckets)
    parts = [Shuffle().sort(arrived.filter(pa.array(buckets == number)), seed=5) for number in range(num_buckets)]
    assert pa.concat_batches(parts).equals(whole)


def test_is_a_permutation_and_depends_on_the_seed():
    batch = documents(WORDS)
    one, two = (texts(Shuffle().sort(batch, seed=seed)) for seed in (1, 2))
    assert sorted(one) == sorted(two) == sorted(WORDS)
    moved = np.array(one, dtype=int)
    assert abs(np.corrcoef(moved, np.arange(2000))[0, 1]) < 0.1
    assert one != two


def test_buckets_are_even_and_in_range():
    buckets = find_ranges(Shuffle().keys(documents(WORDS * 10), 0), 7)
    counts = np.bincount(buckets, minlength=7)
    assert len(counts) == 7
    assert counts.min() > 2500
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert list(find_ranges(ends, 2**32)) == [0, 2**32 - 1]
    with pytest.raises(UsageError):
        find_ranges(ends, 0)
