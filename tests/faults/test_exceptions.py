"""Exceptions of all sorts come back as what they are, or as text where they cannot travel. None stops the others."""

import errno
import itertools
import os
import resource
import sys
import time

import pytest
from gristmill_testing import objects
from gristmill_testing.watching import count_and_sign

import gristmill as gm

pytestmark = pytest.mark.usefixtures("nothing_left")

BACKENDS = ["serial", "threads", "processes"]


def only(results, index):
    """The failure at `index`, all others being right."""
    assert [n for n, result in enumerate(results) if isinstance(result, gm.Failure)] == [index]
    assert [result for n, result in enumerate(results) if n != index] == [n for n in range(len(results)) if n != index]
    return results[index]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("code", [0, 3, "a message"])
def test_sys_exit_is_a_failure_of_the_item(backend, code):
    def function(n):
        if n == 2:
            sys.exit(code)
        return n

    failure = only(gm.parallel_map(function, range(5), workers=2, backend=backend, on_error="return"), 2)
    assert (failure.kind, failure.error_type, failure.message) == ("exception", "SystemExit", str(code))


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_error_is_lack_of_memory(backend):
    def function(n):
        if n == 2:
            raise MemoryError("no more")
        return n

    failure = only(gm.parallel_map(function, range(5), workers=2, backend=backend, on_error="return"), 2)
    assert (failure.kind, failure.error_type, failure.message) == ("out_of_memory", "MemoryError", "no more")


@pytest.mark.full
def test_address_space_limit():
    def setup():
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def function(n, _):
        if n == 2:
            bytearray(1 << 30)
        return n

    failure = only(gm.parallel_map(function, range(5), workers=2, setup=setup, on_error="return"), 2)
    assert (failure.kind, failure.error_type) == ("out_of_memory", "MemoryError")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_argument_larger_than_the_worker_can_hold():
    """The worker cannot even receive it: that ends with a failure of this item, not with workers without end."""

    def setup():
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))

    items = [b"a", bytes(500 << 20), b"b"]
    first, failure, last = gm.parallel_map(
        lambda item, _: len(item), items, workers=2, chunk_size=1, setup=setup, on_error="return"
    )
    assert (first, last) == (1, 1)
    assert failure.index == 1
    assert failure.kind in ("out_of_memory", "worker_died")


@pytest.mark.full
def test_result_larger_than_the_worker_can_pickle():
    def setup():
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def function(n, _):
        return list(range(7_000_000)) if n == 1 else n  # about 270 MiB as objects, 35 MiB of pickle more

    results = gm.parallel_map(function, range(3), workers=1, setup=setup, on_error="return")
    assert results[0] == 0
    assert results[2] == 2
    assert isinstance(results[1], gm.Failure) or len(results[1]) == 7_000_000


UNPICKLABLE = {
    "a generator": lambda _: (n for n in ()),
    "an open file": lambda path: path.open("w"),
    "one that refuses": lambda _: objects.BadDeparture("raise"),
}


@pytest.mark.parametrize("name", UNPICKLABLE)
def test_unpicklable_argument(name, tmp_path):
    bad = UNPICKLABLE[name](tmp_path / "file")
    items = [0, 1, bad, 3, 4, 5]
    failure = only(gm.parallel_map(lambda n: n, items, workers=2, on_error="return"), 2)
    assert failure.kind == "unpicklable"
    with pytest.raises(gm.errors.UnpicklableError) as caught:
        gm.parallel_map(lambda n: n, items, workers=2)
    assert isinstance(caught.value, TypeError)
    assert "item 2" in "\n".join(caught.value.__notes__)
    if name == "an open file":
        bad.close()


@pytest.mark.full
def test_argument_nested_too_deeply_for_pickle():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    failure = only(gm.parallel_map(lambda n: n, [0, 1, deep], workers=1, on_error="return"), 2)
    assert failure.kind == "unpicklable"


@pytest.mark.parametrize("chunk_size", [1, 6, "auto"])
def test_unpicklable_result(chunk_size):
    def function(n):
        return (m for m in ()) if n == 2 else n

    failure = only(gm.parallel_map(function, range(6), workers=2, chunk_size=chunk_size, on_error="return"), 2)
    assert failure.kind == "unpicklable"
    assert failure.attempts == 1
    with pytest.raises(gm.errors.UnpicklableError):
        gm.parallel_map(function, range(6), workers=2, chunk_size=chunk_size)


@pytest.mark.full
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_argument_that_misbehaves_on_arrival_in_the_worker(how):
    items = [0, 1, objects.BadArrival(how), 3, 4, 5]
    failure = only(gm.parallel_map(lambda n: n, items, workers=2, on_error="return"), 2)
    assert failure.kind == "unpicklable"


def test_argument_that_kills_the_worker_on_arrival():
    items = [0, 1, objects.BadArrival("die"), 3, 4, 5]
    failure = only(gm.parallel_map(lambda n: n, items, workers=2, on_error="return"), 2)
    assert failure.kind == "worker_died"


@pytest.mark.full
@pytest.mark.parametrize("chunk_size", [1, 6])
def test_argument_that_kills_the_worker_on_arrival_in_a_chunk(chunk_size):
    items = [0, 1, objects.BadArrival("die"), 3, 4, 5]
    failure = only(gm.parallel_map(lambda n: n, items, workers=1, chunk_size=chunk_size, on_error="return"), 2)
    assert failure.kind == "worker_died"


@pytest.mark.full
@pytest.mark.parametrize("how", ["raise", "exit"])
@pytest.mark.parametrize("chunk_size", [1, 6])
def test_result_that_misbehaves_on_departure(how, chunk_size):
    def function(n):
        return objects.BadDeparture(how) if n == 2 else n

    failure = only(gm.parallel_map(function, range(6), workers=2, chunk_size=chunk_size, on_error="return"), 2)
    assert failure.kind == "unpicklable"


@pytest.mark.full
@pytest.mark.parametrize("chunk_size", [1, 6])
def test_result_that_kills_the_worker_on_departure(chunk_size):
    def function(n):
        return objects.BadDeparture("die") if n == 2 else n

    failure = only(gm.parallel_map(function, range(6), workers=2, chunk_size=chunk_size, on_error="return"), 2)
    assert failure.kind == "worker_died"


@pytest.mark.full
@pytest.mark.parametrize("chunk_size", [1, 6])
def test_result_that_raises_on_arrival_in_the_parent(chunk_size):
    def function(n):
        return objects.BadArrival("raise") if n == 2 else n

    failure = only(gm.parallel_map(function, range(6), workers=2, chunk_size=chunk_size, on_error="return"), 2)
    assert failure.kind == "unpicklable"
    assert "refuses to travel" in failure.message
    assert failure.attempts >= 1, "it was run"


@pytest.mark.full
def test_result_that_exits_on_arrival_in_the_parent():
    """An object of the worker's must not end the caller's program, least of all with code 0 and without a word."""

    def function(n):
        return objects.BadArrival("exit") if n == 2 else n

    try:
        results = gm.parallel_map(function, range(6), workers=2, on_error="return")
    except SystemExit:
        pytest.fail("a result's __setstate__ raised SystemExit through parallel_map")
    assert only(results, 2).kind == "unpicklable"


@pytest.mark.full
def test_argument_that_exits_on_departure_from_the_parent():
    items = [0, 1, objects.BadDeparture("exit"), 3]
    try:
        results = gm.parallel_map(lambda n: n, items, workers=2, on_error="return")
    except SystemExit:
        pytest.fail("an argument's __reduce__ raised SystemExit through parallel_map")
    assert only(results, 2).kind == "unpicklable"


ODD_EXCEPTIONS = {
    "other arguments": (lambda: objects.TwoArguments("box", 3), "TwoArguments", "box has 3"),
    "keyword arguments": (lambda: objects.KeywordOnly(reason="because"), "KeywordOnly", "because"),
    "unpicklable": (lambda: objects.HoldsLock("locked"), "HoldsLock", "locked"),
    "not an Exception": (lambda: objects.NotEvenAnError("odd"), "NotEvenAnError", "odd"),
    "local class": (lambda: type("Local", (ValueError,), {})("here"), "Local", "here"),
    "without words": (lambda: objects.NoMessage("?"), "NoMessage", None),
    "nothing can be set on it": (lambda: objects.NoNotes("frozen"), "NoNotes", "frozen"),
    "a group": (
        lambda: ExceptionGroup("many", [ValueError(1), KeyError(2)]),
        "ExceptionGroup",
        "many (2 sub-exceptions)",
    ),
    "odd errno": (lambda: OSError([1], "odd"), "OSError", None),
    "exits when pickled": (lambda: objects.Dies("alas"), "Dies", "alas"),
    "false": (lambda: objects.Falsy("empty"), "Falsy", "empty"),
    "half a letter": (lambda: ValueError("name \udcff"), "ValueError", "name \udcff"),
    "a megabyte of words": (lambda: ValueError("x" * (1 << 20)), "ValueError", None),
    "StopIteration": (lambda: StopIteration("end"), "StopIteration", "end"),
    "GeneratorExit": (lambda: GeneratorExit("end"), "GeneratorExit", "end"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ODD_EXCEPTIONS)
def test_odd_exception_is_returned(name, backend, tmp_path):
    make, error_type, message = ODD_EXCEPTIONS[name]

    def function(n):
        if n == 2:
            raise make()
        return n

    log = gm.EventLog(tmp_path / "events.jsonl")
    failure = only(gm.parallel_map(function, range(4), workers=1, backend=backend, on_error="return", progress=log), 2)
    assert failure.kind == "exception"
    assert failure.error_type.endswith(error_type)
    assert message is None or failure.message == message
    assert failure.attempts == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ODD_EXCEPTIONS)
def test_odd_exception_is_raised(name, backend):
    """The original where it can travel, else an error that names it; always with the item in a note."""
    make, error_type, message = ODD_EXCEPTIONS[name]

    def function(n):
        if n == 2:
            raise make()
        return n

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        gm.parallel_map(function, range(4), workers=1, backend=backend)
    error = caught.value
    if isinstance(error.__cause__, StopIteration):  # a generator cannot raise it; Python makes it a RuntimeError
        error = error.__cause__
    if isinstance(error, gm.errors.RemoteError):
        assert error_type in str(error)
        assert message is None or message in str(error)
    else:
        assert type(error).__name__ == error_type
    if error_type != "NoNotes":
        assert "item 2" in "\n".join(error.__notes__)


@pytest.mark.full
def test_original_exception_is_raised_with_traceback_item_and_attempt_as_notes():
    def deep_inside(n):
        raise KeyError(f"no {n}")

    def function(n):
        return deep_inside(n) if n == 2 else n

    with pytest.raises(KeyError) as caught:
        gm.parallel_map(function, range(4), workers=2, retries=1)
    notes = "\n".join(caught.value.__notes__)
    assert caught.value.args == ("no 2",)
    assert "item 2" in notes
    assert "attempt 2" in notes
    assert "deep_inside" in notes
    assert "gristmill/engine" not in notes  # the user's frames, not ours


@pytest.mark.full
def test_attributes_of_an_exception_survive():
    def function(n):
        error = ValueError("bad")
        error.row = n
        error.add_note("my own note")
        raise error

    with pytest.raises(ValueError, match="bad") as caught:
        gm.parallel_map(function, [17], workers=1)
    assert caught.value.row == 17
    assert "my own note" in caught.value.__notes__


@pytest.mark.full
def test_first_failing_item_in_order_is_raised(folder):
    """Item 3 fails first in time; item 1 is what is raised, as a plain loop would."""

    def function(n):
        if n == 3:
            (folder / "late").touch()
            raise KeyError(3)
        if n == 1:
            while not (folder / "late").exists():
                time.sleep(0.005)
            raise ValueError(1)
        return n

    with pytest.raises(ValueError, match="1"):
        gm.parallel_map(function, range(8), workers=2, chunk_size=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_retries_are_counted_and_wait_longer_each_time(backend, folder):
    def function(n):
        number = count_and_sign(folder, "try")
        (folder / f"time.{number}").write_text(repr(time.monotonic()))
        raise ValueError(number)

    (failure,) = gm.parallel_map(function, ["item"], workers=1, backend=backend, retries=3, on_error="return")
    assert (failure.kind, failure.attempts, failure.message) == ("exception", 4, "3")
    times = [float((folder / f"time.{number}").read_text()) for number in range(4)]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses[0] >= 0.05
    assert pauses[2] > 1.5 * pauses[0] or pauses[2] > 0.3  # it backs off; a slow machine only makes pauses longer


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_retry_that_succeeds_leaves_no_trace(backend, folder):
    def function(n):
        if count_and_sign(folder, f"try-{n}") < n:
            raise ValueError(n)
        return n

    assert gm.parallel_map(function, range(3), workers=1, backend=backend, retries=2) == [0, 1, 2]


@pytest.mark.full
def test_others_go_on_while_an_item_waits_for_its_retry(folder):
    """One worker: item 0 fails at first, and is tried again only after others have been run."""

    def function(n):
        with (folder / "order").open("a") as file:
            file.write(f"{n}\n")
        if n == 0 and count_and_sign(folder, "try") == 0:
            raise ValueError
        return n

    assert gm.parallel_map(function, range(3), workers=1, chunk_size=1, retries=1) == [0, 1, 2]
    order = (folder / "order").read_text().split()
    assert order[0] == "0"
    assert order.index("1") < 2


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO"])
def test_full_and_broken_disks_are_never_retried(number, folder):
    code = getattr(errno, number)

    def function(n):
        if n == 1:
            count_and_sign(folder, "try")
            raise OSError(code, os.strerror(code), "/data/shard")
        return n

    results = gm.parallel_map(function, range(3), workers=1, retries=5, on_error="return")
    assert results[1].kind == "exception"
    assert results[1].attempts == 1
    assert len(list(folder.iterdir())) == 1
    with pytest.raises(OSError, match="/data/shard") as caught:
        gm.parallel_map(function, range(3), workers=1, retries=5)
    assert caught.value.errno == code


@pytest.mark.full
def test_other_errors_of_the_system_are_retried(folder):
    def function(n):
        if count_and_sign(folder, "try") < 2:
            raise OSError(errno.EAGAIN, "try again")
        return n

    assert gm.parallel_map(function, ["item"], workers=1, retries=2) == ["item"]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_function_that_raises_keyboard_interrupt_does_not_loop(backend):
    """Nobody pressed Ctrl-C; whatever it is called, it must end."""

    def function(n):
        if n == 1:
            raise KeyboardInterrupt
        return n

    try:
        results = gm.parallel_map(function, range(3), workers=2, backend=backend, on_error="return")
    except KeyboardInterrupt:
        return
    assert isinstance(results[1], gm.Failure)
    assert (results[0], results[2]) == (0, 2)


def test_function_that_cannot_be_sent():
    import threading

    lock = threading.Lock()
    with pytest.raises(gm.errors.UnpicklableError) as caught:
        gm.parallel_map(lambda n: (lock, n), range(3), workers=1)
    assert caught.value.help
