"""A permutation is a bijection for every n, looks random in every bit, and never changes.

Blocks in random order, and the rows of n of them together: every row once an epoch, from n blocks at a time.
"""

import itertools
import resource
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.order import Permutation
from gristmill.order.permutation import BlockOrder, make_epoch_key

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


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 14),
    st.integers(0, 2**63 - 1),
    st.integers(0, 3),
)
def test_every_row_once_an_epoch_and_few_blocks_at_a_time(rows, window, seed, epoch):
    order = BlockOrder(rows, window, seed, "web")
    total = sum(rows)
    indices = order(np.arange(epoch * total, (epoch + 1) * total))
    assert sorted(indices.tolist()) == list(range(total))
    blocks = np.searchsorted(np.cumsum(rows), indices, side="right")
    windows = []
    for block in blocks.tolist():  # blocks in groups of `window`, each of which is finished before the next begins
        if not windows or (block not in windows[-1] and len(windows[-1]) == window):
            windows.append(set())
        windows[-1].add(block)
    assert sum(map(len, windows)) == len(rows)


@given(st.integers(0, 500), st.integers(1, 40))
def test_any_rows_alone_are_those_of_the_whole(first, count):
    order = BlockOrder([7, 3, 11, 5], 2, 3, "web")
    whole = BlockOrder([7, 3, 11, 5], 2, 3, "web")(np.arange(600))
    assert order(np.arange(first, first + count)).tolist() == whole[first : first + count].tolist()


@pytest.mark.parametrize("num_rows", [65_537, 262_145])
def test_sizes_at_which_shuffles_of_others_fail(num_rows):
    order = BlockOrder([num_rows], 1, 0, "")
    assert len(np.unique(order(np.arange(num_rows)))) == num_rows


def test_epochs_seeds_and_names_differ():
    rows = [5] * 40
    orders = [
        BlockOrder(rows, 4, seed, name)(np.arange(200) + 200 * epoch).tolist()
        for seed, name, epoch in [(0, "", 0), (0, "", 1), (1, "", 0), (0, "web", 0)]
    ]
    assert all(np.mean(np.array(first) == second) < 0.1 for first, second in itertools.pairwise(orders))
    assert len({tuple(order) for order in orders}) == 4


def test_a_row_far_away_is_found_at_once():
    order = BlockOrder(np.full(160_000, 1000), 64, 7, "web")
    assert 0 <= int(order(np.array([10**9 * 3 + 5]))[0]) < 160_000_000
