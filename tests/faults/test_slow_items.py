"""One slow item does not hold up the rest."""

import pytest
from gristmill_testing.watching import sign, wait_for_file

import gristmill as gm

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_all_others_are_done_while_one_item_takes_long(folder, backend):
    """The other worker has nothing to do: an item that waits behind the slow one belongs to it.

    Item 5 is slow: by then the items have been seen to be fast, so that more of them are sent ahead.
    """

    def function(n):
        if n == 5:
            wait_for_file(folder / "release", seconds=15)
        return n

    results = gm.parallel_imap(function, range(40), workers=2, backend=backend, chunk_size=1, ordered=False)
    try:
        others = [next(results) for _ in range(39)]
        assert sorted(others) == [n for n in range(40) if n != 5]
    finally:
        sign(folder, "release")
    assert list(results) == [5]


@pytest.mark.full
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_finished_result_does_not_wait_for_the_slow_item_behind_it(folder, backend):
    """They share a chunk. What is done leaves at the latest a moment later, not after the next item's hour."""

    def function(n):
        if n == 4:
            wait_for_file(folder / "release", seconds=15)
        return n

    results = gm.parallel_imap(function, range(8), workers=1, backend=backend, chunk_size=4)
    try:
        assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
        assert not (folder / "release").exists()
    finally:
        sign(folder, "release")
    assert list(results) == [4, 5, 6, 7]
