"""Sizes of shards, added up."""

import numpy as np

from gristmill.exports.layout import ShardSize, sum_sizes


def test_sizes_add_up_and_ids_are_united():
    first = ShardSize(2, 10, 7, np.array([1, 5]), np.array([-1, 5]))
    second = ShardSize(1, 3, 3, np.array([2, 5]), np.array([9]))
    both = sum_sizes([first, second])
    assert (both.rows, both.tokens, both.longest, both.max_id) == (3, 13, 7, 9)
    assert both.inner_ids.tolist() == [1, 2, 5]
    assert both.last_ids.tolist() == [-1, 5, 9]


def test_nothing_has_a_size_too():
    nothing = sum_sizes([])
    assert (nothing.rows, nothing.tokens, nothing.longest, nothing.max_id) == (0, 0, 0, -1)
