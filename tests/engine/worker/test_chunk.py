"""Running a few items after another: groups, what was raised, and giving back."""

import pytest

from gristmill.engine.worker import chunk as chunks


class Emitted:
    def __init__(self):
        self.groups = []

    def __call__(self, results, *, last):
        assert not self.is_ended
        self.groups.append((results, last))

    @property
    def is_ended(self):
        return bool(self.groups) and self.groups[-1][1]

    @property
    def results(self):
        return [result for results, _ in self.groups for result in results.values]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(chunks, "monotonic", clock)
    return clock


def chunk_of(items):
    return chunks.Chunk(1, list(range(len(items))), list(items))


def test_fast_items_leave_in_one_batch(clock):
    emitted = Emitted()
    chunks.run_chunk(abs, (), chunk_of([-1, -2, -3]), emitted)
    ((results, last),) = emitted.groups
    assert last
    assert results.values == [1, 2, 3]
    assert results.errors == {}


def test_more_arguments_follow_the_item(clock):
    emitted = Emitted()
    chunks.run_chunk(lambda item, state: (item, state), ("state",), chunk_of([1]), emitted)
    assert emitted.results == [(1, "state")]


def test_what_is_raised_keeps_its_place(clock):
    def function(n):
        if n == 1:
            raise ValueError("one")
        if n == 2:
            raise SystemExit(3)
        return n

    emitted = Emitted()
    chunks.run_chunk(function, (), chunk_of([0, 1, 2, 3]), emitted)
    ((results, _),) = emitted.groups
    assert results.values[0] == 0
    assert results.values[3] == 3
    assert {position: error.error_type for position, error in results.errors.items()} == {
        1: "ValueError",
        2: "SystemExit",
    }


def test_interrupt_of_the_caller_is_not_swallowed(clock):
    def function(n):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chunks.run_chunk(function, (), chunk_of([0]), Emitted())


def test_slow_items_leave_soon(clock):
    def function(n):
        clock.now += 1.0
        return n

    emitted = Emitted()
    chunks.run_chunk(function, (), chunk_of(range(4)), emitted)
    assert emitted.results == [0, 1, 2, 3]
    assert len(emitted.groups) == 4
    assert [last for _, last in emitted.groups] == [False, False, False, True]
    assert sum(results.seconds for results, _ in emitted.groups) == pytest.approx(4.0)


def test_slow_chunk_gives_its_rest_back(clock):
    def function(n):
        clock.now += 1.0
        return n

    emitted = Emitted()
    chunks.run_chunk(function, (), chunk_of(range(10)), emitted, returns_unstarted=True)
    assert emitted.is_ended
    assert emitted.results == list(range(len(emitted.results)))
    assert 1 <= len(emitted.results) <= 3


def test_explicit_chunk_is_run_to_its_end(clock):
    def function(n):
        clock.now += 1.0
        return n

    emitted = Emitted()
    chunks.run_chunk(function, (), chunk_of(range(10)), emitted, returns_unstarted=False)
    assert emitted.results == list(range(10))


def test_remaining_follows_done():
    chunk = chunks.Chunk(1, [5, 6, 7], ["a", "b", "c"])
    assert chunk.unfinished_items() == [(5, "a"), (6, "b"), (7, "c")]
    chunk.num_done = 2
    assert chunk.unfinished_items() == [(7, "c")]


class NoteBook:
    """Stands for a recorder."""

    def __init__(self):
        self.notes = []

    def note(self, started, item, position=-1):
        self.notes.append(("timed", item))


def test_each_item_is_noted_before_it_is_run(clock):
    book = NoteBook()
    seen = []
    chunks.run_chunk(lambda n: seen.append(book.notes[-1]), (), chunk_of([7, 8]), Emitted(), recorder=book)
    assert seen == [("timed", 0), ("timed", 1)]
