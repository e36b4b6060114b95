"""Where chunks come from: each item once, in good sizes, never more of the input than asked for."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.engine.item_queue import ChunkSizer, ItemQueue


def sizer(fixed="auto", workers=2, total=None):
    return ChunkSizer(fixed, workers, total)


def test_fixed_size_is_kept():
    fixed = sizer(7, total=1000)
    fixed.observe_time(100, 50.0)
    fixed.observe_size(10, 10 << 20)
    assert fixed.choose_size(0) == fixed.choose_size(999) == 7


def test_first_chunk_is_one_item():
    """Nothing is known yet: it may take an hour."""
    assert sizer().choose_size(0) == 1


def test_fast_items_go_in_large_chunks():
    auto = sizer()
    for _ in range(10):
        auto.observe_time(100, 100 * 2e-6)
    assert auto.choose_size(0) > 1000


def test_slow_items_go_one_by_one():
    auto = sizer()
    for _ in range(10):
        auto.observe_time(1, 0.5)
    assert auto.choose_size(0) == 1


def test_size_grows_step_by_step():
    """One fast item does not prove that ten thousand are."""
    auto = sizer()
    auto.observe_time(1, 1e-6)
    assert auto.choose_size(0) <= 32


def test_size_falls_at_once():
    auto = sizer()
    for _ in range(10):
        auto.observe_time(100, 1e-4)
    large = auto.choose_size(0)
    auto.observe_time(1, 1.0)
    assert auto.choose_size(0) < large / 100


def test_large_items_make_small_chunks():
    auto = sizer()
    auto.observe_size(1, 2 << 20)
    for _ in range(10):
        auto.observe_time(10, 1e-5)
    assert auto.choose_size(0) <= 4


def test_last_chunks_are_small():
    """So that no worker ends late: with little left, each gets a part of it."""
    auto = sizer(workers=4, total=10_000)
    for _ in range(10):
        auto.observe_time(1000, 1e-3)
    assert auto.choose_size(9_990) == 1
    assert auto.choose_size(9_000) < 1000 / 4
    assert auto.choose_size(20_000) == 1  # the input was longer than it said


def test_no_time_and_no_items_are_no_problem():
    auto = sizer()
    auto.observe_time(0, 0.0)
    auto.observe_time(10, 0.0)
    auto.observe_size(0, 0)
    assert auto.choose_size(0) >= 1


@pytest.mark.parametrize("num_bytes", [1, 5, 20])
def test_results_held_for_an_earlier_one_stay_within_memory(num_bytes):
    """256 MiB of results as Python objects, not as they lie in a pickle: an int takes 5 bytes there and 28 here,
    and its place in a dict another 100."""
    auto = sizer()
    auto.observe_size(1000, 1000 * num_bytes)
    assert auto.num_items_in(256 << 20) * 100 <= 1 << 30


def test_at_least_a_few_large_results_may_wait():
    auto = sizer(workers=3)
    auto.observe_size(1, 1 << 30)
    assert auto.num_items_in(256 << 20) >= 3


def drain(queue, max_items=None):
    while (chunk := queue.take_next_chunk(max_items)) is not None:
        yield chunk


def test_every_item_once_in_order():
    queue = ItemQueue("abcdefg", sizer(3), 0)
    chunks = list(drain(queue))
    assert [chunk.items for chunk in chunks] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert [list(chunk.indexes) for chunk in chunks] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len({chunk.number for chunk in chunks}) == 3
    assert queue.is_exhausted


def test_numbering_can_go_on_where_another_stopped():
    queue = ItemQueue("ab", sizer(1), 10)
    assert [list(chunk.indexes) for chunk in drain(queue)] == [[10], [11]]


def test_limit_of_a_worker_is_kept():
    queue = ItemQueue(range(10), sizer(5), 0)
    assert len(queue.take_next_chunk(2).items) == 2
    assert len(queue.take_next_chunk(None).items) == 5


def test_returned_items_go_first_and_alone_if_asked():
    queue = ItemQueue("abcdef", sizer(3), 0)
    first = queue.take_next_chunk(None)
    queue.put_back(first.unfinished_items(), alone=True)
    assert [chunk.items for chunk in itertools.islice(drain(queue), 4)] == [["a"], ["b"], ["c"], ["d", "e", "f"]]


def test_returned_items_go_together_if_not_alone():
    queue = ItemQueue("abcdef", sizer(3), 0)
    queue.put_back(queue.take_next_chunk(None).unfinished_items(), alone=False)
    assert queue.take_next_chunk(None).items == ["a", "b", "c"]


def test_only_what_is_asked_for_is_taken():
    taken = []

    def items():
        for n in itertools.count():
            taken.append(n)
            yield n

    queue = ItemQueue(items(), sizer(4), 0)
    assert taken == []
    queue.take_next_chunk(None)
    assert len(taken) == 4
    queue.prefetch(3)
    assert len(taken) == 7
    queue.prefetch(3)
    assert len(taken) == 7


def test_pause_stops_the_input_but_not_what_came_back():
    queue = ItemQueue(range(10), sizer(2), 0)
    chunk = queue.take_next_chunk(None)
    queue.is_paused = True
    assert queue.take_next_chunk(None) is None
    queue.put_back(chunk.unfinished_items(), alone=False)
    assert queue.take_next_chunk(None).items == [0, 1]
    queue.is_paused = False
    assert queue.take_next_chunk(None).items == [2, 3]


def test_end_forgets_what_comes_after():
    queue = ItemQueue(range(10), sizer(1), 0)
    queue.prefetch(6)
    queue.end_at(2)
    assert [chunk.items for chunk in drain(queue)] == [[0], [1]]


@given(
    number=st.integers(0, 60),
    chunk_size=st.one_of(st.just("auto"), st.integers(1, 9)),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_law_of_the_queue(number, chunk_size, seed):
    """Whatever is put back, in whatever state: each item is done exactly once in the end."""
    rng = random.Random(seed)
    auto = ChunkSizer(chunk_size, 2, number)
    queue = ItemQueue(range(number), auto, 0)
    done = []
    while (chunk := queue.take_next_chunk(rng.choice([None, 1, 4]))) is not None:
        assert list(chunk.indexes) == list(chunk.items)
        chunk.num_done = rng.randint(0, len(chunk.items))
        auto.observe_time(chunk.num_done, 1e-6 * chunk.num_done)
        done += chunk.items[: chunk.num_done]
        queue.put_back(chunk.unfinished_items(), alone=rng.random() < 0.5)
    assert sorted(done) == list(range(number))
