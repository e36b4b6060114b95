"""Blocks in random order, and the rows of n of them together: every row once an epoch, from n blocks at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.order.block_order import BlockOrder


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
