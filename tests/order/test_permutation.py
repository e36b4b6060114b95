"""A permutation is a bijection for every n, looks random in every bit, and never changes."""

import resource
import time
from collections import Counter

import numpy as np
import pytest

from gristmill.core.errors import UsageError
from gristmill.order import Permutation
from gristmill.order.permutation import make_epoch_key

EDGES = sorted({2**k + d for k in range(1, 21) for d in (-1, 0, 1)} | {4**k + 1 for k in range(1, 11)})


@pytest.mark.parametrize("sizes", [range(1, 301), EDGES], ids=["small", "edges"])
def test_is_a_bijection(sizes):
    for n in sizes:
        places = Permutation(n, key=n * 7919)(np.arange(n))
        assert np.array_equal(np.sort(places), np.arange(n)), n


@pytest.mark.parametrize("n", [10**9, 10**12, 2**40 + 1, 2**62])
def test_is_one_to_one_on_samples_of_huge_sizes(n):
    rng = np.random.default_rng(0)
    indices = np.unique(np.concatenate([np.arange(50_000), n - 1 - np.arange(50_000), rng.integers(0, n, 200_000)]))
    places = Permutation(n, key=5)(indices)
    assert places.min() >= 0
    assert places.max() < n
    assert len(np.unique(places)) == len(indices)


def chi_square(values, bins):
    counts = np.bincount(values, minlength=bins)
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


# 99.99th percentile of chi-square with 7 degrees of freedom is 29.9; the keys are fixed, so this cannot flicker.
@pytest.mark.parametrize("n", [2**20, 900_000, 600_000, 2**20 + 1, 10**9, 10**12])
@pytest.mark.parametrize("key", range(6))
def test_low_and_high_bits_are_uniform_in_short_windows(n, key):
    permutation = Permutation(n, make_epoch_key(key, "web", 0))
    for start in (0, n // 2, n - 1024):
        places = permutation(np.arange(start, start + 1024))
        assert chi_square(places % 8, 8) < 35
        assert chi_square(places * 8 // n, 8) < 35
        assert 0.42 < (places % 2).mean() < 0.58


def test_neighbours_are_not_kept_together():
    places = Permutation(10**6, key=3)(np.arange(10**6))
    steps = np.abs(np.diff(places))
    assert (steps == 1).mean() < 1e-4
    assert abs(np.corrcoef(places, np.arange(10**6))[0, 1]) < 0.01


def test_every_order_of_few_is_equally_likely():
    orders = Counter(
        tuple(Permutation(3, make_epoch_key(seed, "web", 1))(np.arange(3)).tolist()) for seed in range(3000)
    )
    assert len(orders) == 6
    assert max(orders.values()) < 1.25 * min(orders.values())


def test_golden_vectors():
    """Whoever must change these must raise ORDER_VERSION: states saved before mean other rows."""
    assert Permutation(16, key=7)(np.arange(16)).tolist() == [13, 1, 10, 14, 6, 9, 2, 5, 8, 7, 12, 11, 3, 15, 4, 0]
    assert Permutation(65537, key=1)([0, 1, 65535, 65536]).tolist() == [63630, 30048, 51661, 7069]
    assert Permutation(10**12, key=2**64 - 1)([0, 1, 10**12 - 1]).tolist() == [233416192921, 626944417677, 148743267037]
    assert [make_epoch_key(7, "web", epoch) for epoch in range(2)] == [13744505006043651613, 16544507736040009665]


def test_a_seed_and_its_neighbour_share_no_epoch():
    keys = {make_epoch_key(seed, source, epoch) for seed in range(20) for source in ("a", "b") for epoch in range(20)}
    assert len(keys) == 800


def test_a_number_for_a_number():
    permutation = Permutation(100, key=1)
    assert isinstance(permutation(3), int)
    assert permutation(np.int32(3)) == permutation([3])[0]
    assert permutation(np.arange(100).reshape(10, 10)).shape == (10, 10)


@pytest.mark.parametrize("wrong", [[-1], [100], [2**40]])
def test_other_indices_are_refused(wrong):
    with pytest.raises(IndexError):
        Permutation(100, key=1)(wrong)


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_other_sizes_are_refused(n):
    with pytest.raises(UsageError):
        Permutation(n, key=1)


@pytest.mark.slow
def test_a_million_numbers_in_well_under_a_second():
    permutation = Permutation(10**12, key=9)
    permutation(0)
    start = time.process_time()
    permutation(np.arange(1_000_000))
    assert time.process_time() - start < 0.7


def test_a_million_numbers_need_no_memory():
    permutation = Permutation(10**12, key=9)
    permutation(0)
    numbers = np.arange(1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    permutation(numbers)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 << 10
