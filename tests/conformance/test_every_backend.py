"""One body, every backend: the same results, order, failures and laws wherever the work runs."""

import itertools
import logging
import os
import threading
import tracemalloc
import weakref

import pytest
from gristmill_testing.objects import Plain, TwoArguments
from gristmill_testing.watching import count_and_sign, meet, wait_for_file, wait_until
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gristmill as gm

pytestmark = pytest.mark.usefixtures("nothing_left")

BACKENDS = ["serial", "threads", "processes", "auto"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
PARALLEL = ["threads", "processes"]


@every_backend
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chunk_size", [1, 3, "auto"])
def test_same_results(backend, ordered, chunk_size):
    results = gm.parallel_map(
        lambda n: (n, str(n)), range(50), workers=2, backend=backend, ordered=ordered, chunk_size=chunk_size
    )
    assert type(results) is list
    assert (results if ordered else sorted(results)) == [(n, str(n)) for n in range(50)]


@every_backend
@pytest.mark.parametrize("items", [[], (), range(0), iter([]), {}], ids=lambda items: type(items).__name__)
def test_nothing_to_do(backend, items):
    if not isinstance(items, (list, tuple, range, dict)):
        items = iter([])
    assert gm.parallel_map(lambda n: n, items, workers=2, backend=backend) == []
    assert list(gm.parallel_imap(lambda n: n, items, workers=2, backend=backend)) == []


@every_backend
def test_one_item(backend):
    assert gm.parallel_map(lambda n: n + 1, [1], workers=4, backend=backend) == [2]


@every_backend
@pytest.mark.parametrize("value", [None, False, 0, "", [], float("inf"), StopIteration, NotImplemented], ids=repr)
def test_any_value_may_be_item_and_result(backend, value):
    """Nothing is taken for "there is none"."""
    results = gm.parallel_map(lambda item: item, [value, value], workers=1, backend=backend)
    assert results == [value, value]


@every_backend
def test_failure_as_a_result_is_just_a_result(backend):
    """A function that itself returns a `Failure`, or an exception, has not failed."""
    failure = gm.Failure(index=9, kind="exception", error_type="X", message="not ours")
    results = gm.parallel_map(lambda n: failure if n else ValueError("x"), range(2), workers=1, backend=backend)
    assert isinstance(results[0], ValueError)
    assert results[1] == failure
    assert gm.parallel_map(lambda n: failure, range(2), workers=1, backend=backend, on_error="skip") == [failure] * 2


@every_backend
def test_sources_of_items(backend):
    for items in ([1, 2], (1, 2), {1: "a", 2: "b"}, "12", iter([1, 2]), (n for n in (1, 2)), map(int, "12")):
        expected = list(items) if not hasattr(items, "__next__") else [1, 2]
        assert gm.parallel_map(lambda item: item, items, workers=1, backend=backend) == expected


class _NoLength:
    """As an endless stream has it: the class has a length, this object has none."""

    def __len__(self):
        raise TypeError("endless")

    def __iter__(self):
        return iter(range(5))


class _WrongLength(_NoLength):
    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length


@every_backend
def test_iterable_whose_length_raises(backend):
    assert gm.parallel_map(lambda n: n, _NoLength(), workers=1, backend=backend) == [0, 1, 2, 3, 4]


@every_backend
@pytest.mark.parametrize("length", [0, 3, 1000])
def test_length_is_only_a_hint(backend, length):
    assert gm.parallel_map(lambda n: n, _WrongLength(length), workers=2, backend=backend) == [0, 1, 2, 3, 4]


@every_backend
def test_builtin_functions_classes_and_methods(backend):
    assert gm.parallel_map(abs, [-1, 2], workers=1, backend=backend) == [1, 2]
    assert gm.parallel_map(str.upper, ["a", "b"], workers=1, backend=backend) == ["A", "B"]
    assert gm.parallel_map(Plain, [1, 2], workers=1, backend=backend) == [Plain(1), Plain(2)]
    assert gm.parallel_map("{}!".format, [1, 2], workers=1, backend=backend) == ["1!", "2!"]


@every_backend
def test_on_error_raise(backend):
    def function(n):
        if n in (3, 5):
            raise ValueError(f"bad {n}")
        return n

    with pytest.raises(ValueError, match="bad 3") as caught:
        gm.parallel_map(function, range(8), workers=2, backend=backend)
    assert "item 3" in "\n".join(caught.value.__notes__)


@every_backend
def test_imap_yields_what_came_before_the_failure(backend):
    def function(n):
        if n == 3:
            raise ValueError("bad 3")
        return n

    got = []
    with pytest.raises(ValueError, match="bad 3"):
        got.extend(gm.parallel_imap(function, range(8), workers=2, backend=backend))
    assert got == [0, 1, 2]


@every_backend
@pytest.mark.parametrize("ordered", [True, False])
def test_on_error_return(backend, ordered):
    def function(n):
        if n in (3, 5):
            raise KeyError(f"bad {n}")
        return n

    results = gm.parallel_map(function, range(8), workers=2, backend=backend, on_error="return", ordered=ordered)
    failures = sorted((result for result in results if isinstance(result, gm.Failure)), key=lambda f: f.index)
    assert sorted(result for result in results if isinstance(result, int)) == [0, 1, 2, 4, 6, 7]
    fields = [(f.index, f.kind, f.error_type, f.message, f.signal, f.attempts) for f in failures]
    assert fields == [(n, "exception", "KeyError", f"'bad {n}'", None, 1) for n in (3, 5)]
    assert all("function" in failure.traceback for failure in failures)
    assert all("gristmill/engine" not in failure.traceback for failure in failures)
    if ordered:
        assert (results[3], results[5]) == tuple(failures)


@every_backend
def test_on_error_skip(backend, caplog):
    def function(n):
        if n % 3 == 0:
            raise ValueError(n)
        return n

    with caplog.at_level(logging.WARNING, "gristmill"):
        results = gm.parallel_map(function, range(9), workers=2, backend=backend, on_error="skip", desc="my job")
    assert results == [1, 2, 4, 5, 7, 8]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "my job" in message
    assert "skipped 3 of 9" in message


@every_backend
def test_names_of_errors(backend):
    """With their module, unless they are builtin."""

    def function(n):
        if n == 0:
            raise ZeroDivisionError
        raise TwoArguments("a", 1)

    builtin, other = gm.parallel_map(function, range(2), workers=1, backend=backend, on_error="return")
    assert builtin.error_type == "ZeroDivisionError"
    assert other.error_type == "gristmill_testing.objects.TwoArguments"


@every_backend
@pytest.mark.parametrize("needed", [1, 2])
def test_retries(backend, folder, needed):
    def function(n):
        if n == 2 and count_and_sign(folder, "try") < needed:
            raise ValueError(n)
        return n

    results = gm.parallel_map(function, range(4), workers=2, backend=backend, retries=1, on_error="return")
    if needed == 1:
        assert results == [0, 1, 2, 3]
    else:
        assert results[2].attempts == 2
        assert len(list(folder.iterdir())) == 2


@every_backend
def test_unordered_retries_come_last_but_come(backend, folder):
    def function(n):
        if n == 0 and count_and_sign(folder, "try") == 0:
            raise ValueError(n)
        return n

    results = gm.parallel_map(function, range(4), workers=2, backend=backend, retries=1, ordered=False)
    assert sorted(results) == [0, 1, 2, 3]


@every_backend
@pytest.mark.parametrize("workers", [1, 3])
def test_setup_runs_once_a_worker(backend, folder, workers):
    def setup():
        token = f"{os.getpid()}-{threading.get_ident()}"
        number = count_and_sign(folder, f"setup-{token}")
        return token, number

    def function(n, state):
        here = f"{os.getpid()}-{threading.get_ident()}"
        return state, here

    results = gm.parallel_map(function, range(60), workers=workers, backend=backend, setup=setup)
    assert all(state == (here, 0) for state, here in results), "each item saw its own worker's state"
    assert len({here for _, here in results}) <= workers
    assert len(list(folder.iterdir())) <= workers


@pytest.mark.parametrize("backend", PARALLEL)
def test_all_workers_are_used(backend, folder):
    """Three items that wait for each other can only return if three workers run at once."""

    def function(n):
        meet(folder, 3)
        return os.getpid(), threading.get_ident()

    places = gm.parallel_map(function, range(3), workers=3, backend=backend, chunk_size=1)
    assert len(set(places)) == 3


@every_backend
def test_state_is_kept_from_item_to_item(backend):
    counts = gm.parallel_map(
        lambda n, state: state.append(n) or len(state), range(10), workers=1, backend=backend, setup=list
    )
    assert counts == list(range(1, 11))


@every_backend
def test_setup_that_gives_nothing(backend):
    results = gm.parallel_map(lambda n, state: (n, state), range(2), workers=1, backend=backend, setup=lambda: None)
    assert results == [(0, None), (1, None)]


@every_backend
def test_setup_is_not_run_for_nothing(backend, folder):
    def setup():
        count_and_sign(folder, "setup")

    assert gm.parallel_map(lambda n, state: n, [], workers=2, backend=backend, setup=setup) == []


def counted(taken, items=None):
    for item in itertools.count() if items is None else items:
        taken.append(1)
        yield item


@every_backend
@pytest.mark.parametrize("ordered", [True, False])
def test_endless_input(backend, ordered):
    taken = []
    results = gm.parallel_imap(lambda n: n, counted(taken), workers=2, backend=backend, ordered=ordered)
    got = [next(results) for _ in range(500)]
    results.close()
    assert got == list(range(500)) if ordered else len(set(got)) == 500
    assert len(taken) < 200_000


@every_backend
def test_look_ahead_is_a_few_items_a_worker(backend):
    """One at a time: what is taken from the input follows what the caller takes."""
    taken = []
    results = gm.parallel_imap(lambda n: n, counted(taken), workers=2, backend=backend, chunk_size=1, ordered=False)
    for number in range(1, 200):
        next(results)
        assert len(taken) <= number + 12, "two chunks at each worker, some on their way, no more"
    results.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", PARALLEL)
def test_results_that_wait_for_a_slow_one_are_bounded(backend, folder):
    """The first item is slow and the input endless. Results of 1 MiB: at most a few hundred may wait for it."""
    taken = []

    def function(n):
        if n == 0:
            wait_for_file(folder / "release")
        return bytes(1 << 20) if backend == "processes" else n

    def items():
        for n in itertools.count():
            taken.append(n)
            if n == 3000:
                (folder / "release").touch()  # far too many were taken
            yield n

    def release_when_quiet():
        seen = -1
        while seen != len(taken) or not taken:
            seen = len(taken)
            for _ in range(100):  # two seconds without any
                threading.Event().wait(0.02)
                if seen != len(taken):
                    break
        (folder / "release").touch()

    watcher = threading.Thread(target=release_when_quiet)
    watcher.start()
    results = gm.parallel_imap(function, items(), workers=2, backend=backend, chunk_size=1)
    next(results)
    most = len(taken)
    results.close()
    watcher.join()
    assert most < 3000


@every_backend
def test_large_items_are_taken_a_few_at_a_time(backend):
    """An endless input of 1 MiB items, of a caller that takes one result after another."""
    taken = []
    items = (bytes(1 << 20) for _ in itertools.count())
    results = gm.parallel_imap(len, counted(taken, items), workers=2, backend=backend, ordered=False)
    most_ahead = 0
    for number in range(1, 60):
        next(results)
        most_ahead = max(most_ahead, len(taken) - number)
    results.close()
    if backend == "processes":
        assert most_ahead <= 64


@every_backend
def test_items_are_not_kept_after_their_results(backend):
    """Memory is bounded: what has been handed out is forgotten."""

    class Item:
        def __reduce__(self):
            return object, ()

    alive = weakref.WeakSet()

    def items():
        for _ in range(3000):
            item = Item()
            alive.add(item)
            yield item

    most = 0
    for _ in gm.parallel_imap(lambda item: 0, items(), workers=2, backend=backend, chunk_size=5):
        most = max(most, len(alive))
    assert most < 200
    wait_until(lambda: len(alive) <= 1, "the end of the last items", 5)


@every_backend
def test_skipped_failures_are_not_kept(backend):
    """An endless job that skips now and then must not grow. Each failure here weighs a quarter of a MiB."""

    def function(n):
        raise ValueError("x" * 60_000)

    def memory_after(number):
        tracemalloc.start()
        try:
            results = gm.parallel_imap(
                function, range(number), workers=1, backend=backend, on_error="skip", progress=False, chunk_size=5
            )
            assert list(results) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    memory_after(10)
    assert memory_after(600) < memory_after(100) + (20 << 20)


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("workers", 0),
        ("workers", -1),
        ("workers", "many"),
        ("workers", 1.5),
        ("retries", -1),
        ("chunk_size", 0),
        ("chunk_size", "big"),
        ("on_error", "ignore"),
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", float("nan")),
        ("max_items_per_worker", 0),
    ],
)
@pytest.mark.parametrize("call", [gm.parallel_map, gm.parallel_imap], ids=["map", "imap"])
def test_wrong_use_is_refused_before_anything_runs(backend, option, value, call):
    """At the call itself, also for `parallel_imap`, and without touching the input."""
    taken = []
    with pytest.raises(gm.errors.UsageError) as caught:
        call(lambda n: n, counted(taken), backend=backend, **{option: value})
    assert option in str(caught.value)
    assert taken == []


@pytest.mark.parametrize("call", [gm.parallel_map, gm.parallel_imap], ids=["map", "imap"])
def test_the_words_of_other_libraries_are_answered_with_ours(call):
    """Those of `multiprocessing`, joblib and speedy_utils."""
    words = {"mp": "processes", "multiprocessing": "processes", "process": "processes", "loky": "processes"}
    words |= {"thread": "threads", "threadpool": "threads", "seq": "serial", "safe": "serial"}
    for word, own_name in words.items():
        with pytest.raises(gm.errors.UsageError) as caught:
            call(abs, [1], backend=word)
        assert f'"{own_name}"' in caught.value.help
    for word, own_name in {"n_jobs": "workers", "chunksize": "chunk_size", "initializer": "setup"}.items():
        with pytest.raises(TypeError, match=rf"no argument '{word}': write {own_name}="):
            call(abs, [1], **{word: 2})
    with pytest.raises(gm.errors.UsageError) as caught:
        call(abs, [1], backend="threads", timeout=3)
    assert 'backend="processes"' in caught.value.help
    assert list(call(abs, [-1], workers=None, progress=False, desc="a")) == [1]


def test_unknown_backend_is_refused_with_the_nearest_name():
    with pytest.raises(gm.errors.UsageError, match="processes"):
        gm.parallel_map(abs, [1], backend="processe")


@pytest.mark.parametrize("call", [gm.parallel_map, gm.parallel_imap], ids=["map", "imap"])
def test_what_cannot_be_called_is_refused(call):
    with pytest.raises(gm.errors.UsageError):
        call(3, [1])
    with pytest.raises(gm.errors.UsageError):
        call(abs, [1], setup=3)


@every_backend
def test_what_cannot_be_iterated_is_refused(backend):
    with pytest.raises(TypeError):
        gm.parallel_map(abs, 3, backend=backend)


@every_backend
def test_nested_calls_give_the_same(backend):
    def function(n):
        return gm.parallel_map(lambda m: m * n, range(4), workers=2, backend=backend, progress=False)

    results = gm.parallel_map(function, range(3), workers=2, backend=backend, progress=False)
    assert results == [[m * n for m in range(4)] for n in range(3)]


def _expected(failing, number, on_error):
    if on_error == "skip":
        return [n * 7 for n in range(number) if n not in failing]
    return [("failed", n) if n in failing else n * 7 for n in range(number)]


def _shown(results):
    return [("failed", result.index) if isinstance(result, gm.Failure) else result for result in results]


def _check_law(backend, number, failing, workers, chunk_size, on_error, ordered, streams):
    def function(n):
        if n in failing:
            raise LookupError(n)
        return n * 7

    call = gm.parallel_imap if streams else gm.parallel_map
    options = {
        "workers": workers,
        "backend": backend,
        "chunk_size": chunk_size,
        "ordered": ordered,
        "on_error": on_error,
        "progress": False,
    }
    if on_error == "raise" and failing:
        with pytest.raises(LookupError) as caught:
            list(call(function, range(number), **options))
        if ordered:
            assert caught.value.args == (min(failing),)
        return
    results = _shown(call(function, range(number), **options))
    expected = _expected(failing, number, "return" if on_error == "raise" else on_error)
    assert results == expected if ordered else sorted(results, key=repr) == sorted(expected, key=repr)


@st.composite
def calls(draw, max_items):
    number = draw(st.integers(0, max_items))
    failing = draw(st.frozensets(st.integers(0, max(0, number - 1)), max_size=5)) if number else frozenset()
    return {
        "number": number,
        "failing": failing,
        "workers": draw(st.integers(1, 4)),
        "chunk_size": draw(st.one_of(st.just("auto"), st.integers(1, 40))),
        "on_error": draw(st.sampled_from(["raise", "return", "skip"])),
        "ordered": draw(st.booleans()),
        "streams": draw(st.booleans()),
    }


LAW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}


@given(call=calls(200), backend=st.sampled_from(["serial", "threads", "auto"]))
@settings(max_examples=150, **LAW)
def test_law_in_one_process(call, backend):
    """The parallel map equals the plain one, for any way of cutting the work and any failing items."""
    _check_law(backend, **call)


@given(call=calls(200))
@settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate], **LAW)
def test_law_in_processes(call):
    _check_law("processes", **call)


@given(items=st.lists(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=8)))
@settings(max_examples=10, phases=[Phase.explicit, Phase.reuse, Phase.generate], **LAW)
def test_law_for_any_data_in_processes(items):
    assert gm.parallel_map(lambda item: [item, item], items, workers=1, progress=False) == [[i, i] for i in items]
