"""Objects to bytes and back: by value where the worker could not import them, uncopied where they are large.

Exceptions on their way: as text always, as themselves where that survives.
"""

import errno
import functools
import os
import pickle
import signal
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing import objects, scripts
from gristmill_testing.objects import BadDeparture, Plain

from gristmill.core.errors import RemoteError, SourceChangedError, UsageError
from gristmill.engine.worker import pickling
from gristmill.engine.worker.pickling import CapturedError


def joined(parts):
    return b"".join(bytes(part) for part in parts)


def round_trip(obj):
    parts, buffers = pickling.encode(obj)
    # As they arrive on the other side: writable memory that nobody else has.
    return pickling.decode(joined(parts), [bytearray(buffer) for buffer in buffers])


@pytest.mark.parametrize("value", [None, 1, "é", b"x" * 100_000, {"a": [1, (2, 3)]}, {1, 2}, 1.5, range(3), ...])
def test_plain_values(value):
    assert round_trip(value) == value


def test_importable_objects_go_by_reference():
    parts, _ = pickling.encode(Plain(3))
    assert len(joined(parts)) < 200
    assert round_trip(Plain(3)) == Plain(3)
    assert round_trip(Plain) is Plain


def test_lambdas_closures_and_local_classes_go_by_value():
    base = 10
    assert round_trip(lambda n: n + base)(1) == 11

    class Local:
        def method(self):
            return base

    assert round_trip(Local()).method() == 10


@pytest.fixture
def main_module(monkeypatch):
    """A `__main__` with functions and classes of its own, as a script has it."""
    module = types.ModuleType("__main__")
    exec(
        "import enum, dataclasses, typing\n"
        "def function(n): return helper(n) + 1\n"
        "def helper(n): return n * 2\n"
        "class Thing:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def method(self): return self.n\n"
        "class Color(enum.Enum):\n"
        "    RED = 1\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Point:\n"
        "    x: int\n"
        "class Pair(typing.NamedTuple):\n"
        "    a: int\n",
        vars(module),
    )
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def decoded_elsewhere(obj, expression, project):
    """What another process, which has another `__main__`, makes of the bytes."""
    (project / "bytes").write_bytes(pickling.to_bytes(obj))
    script = scripts.write(
        project / "other.py",
        f"""
        import sys
        sys.path[:] = {sys.path!r}
        from gristmill.engine.worker import pickling
        obj = pickling.decode(open("bytes", "rb").read())
        print({expression})
        """,
    )
    process = scripts.run(script)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize(
    ("expression", "check", "expected"),
    [
        ("function", "obj(3)", "7"),
        ("Thing", "obj(3).method()", "3"),
        ("Thing(4)", "obj.method()", "4"),
        ("Thing(4).method", "obj()", "4"),
        ("[Thing(1), Thing(2)]", "[o.n for o in obj], type(obj[0]) is type(obj[1])", "[1, 2] True"),
        ("Color.RED", "obj.name, obj is type(obj).RED", "RED True"),
        ("Point(5)", "obj == type(obj)(5)", "True"),
        ("Pair(6)", "obj.a", "6"),
        ("{'key': (function, Thing)}", "obj['key'][0](1), obj['key'][1](2).n", "3 2"),
    ],
)
def test_what_main_defines_goes_by_value(main_module, project, expression, check, expected):
    obj = eval(expression, vars(main_module))
    assert decoded_elsewhere(obj, check, project) == expected


def test_objects_with_slots_come_back(project):
    """A worker's copy of their class has a `__dict__`, and the script's class has none to put that into."""
    script = scripts.write(
        project / "script.py",
        """
        import dataclasses
        import gristmill as gm

        @dataclasses.dataclass(slots=True)
        class Point:
            x: int

        class Named(Point):
            __slots__ = ("name", "unset")

        def name(point):
            named = Named(point.x + 1)
            named.name = ["n"]
            return Point(point.x + 2), named

        [(point, named)] = gm.parallel_map(name, [Point(1)], workers=1)
        print(point, named.x, named.name, hasattr(named, "unset"), type(point) is Point, type(named) is Named)
        """,
    )
    process = scripts.run(script)
    assert process.stdout == "Point(x=3) 2 ['n'] False True True\n", process.stderr


def test_partials_of_main_functions_go_by_value(main_module, project):
    assert decoded_elsewhere(functools.partial(main_module.function, 3), "obj()", project) == "7"


@pytest.mark.parametrize("size", [1 << 14, 1 << 20])
def test_large_arrays_are_not_copied_on_the_way_out(size):
    array = np.zeros(size, dtype=np.uint8)
    _, buffers = pickling.encode([array])
    (buffer,) = buffers
    assert np.shares_memory(np.frombuffer(buffer, dtype=np.uint8), array)


def test_large_arrow_columns_are_not_copied_on_the_way_out():
    column = pa.array(np.arange(1 << 17))
    _, buffers = pickling.encode(pa.table({"a": column}))
    addresses = {np.frombuffer(buffer, dtype=np.uint8).ctypes.data for buffer in buffers}
    assert column.buffers()[1].address in addresses


def test_large_bytes_are_not_copied_on_the_way_out():
    data = bytes(1 << 20)
    parts, _ = pickling.encode(data)
    assert any(part is data for part in parts)


def test_decoded_arrays_use_the_memory_they_came_in():
    array = np.arange(1 << 17)
    parts, buffers = pickling.encode(array)
    memory = [bytearray(buffer) for buffer in buffers]
    result = pickling.decode(joined(parts), memory)
    assert np.shares_memory(result, np.frombuffer(memory[0], dtype=np.uint8))


def test_small_arrays_travel_inside():
    _, buffers = pickling.encode([np.zeros(10), np.zeros(100)])
    assert buffers == []


@pytest.mark.parametrize("size", [10, 1 << 17])
@pytest.mark.parametrize("writable", [True, False])
def test_writability_is_kept(size, writable):
    array = np.arange(size)
    array.flags.writeable = writable
    assert round_trip(array).flags.writeable == writable


def test_same_object_twice_is_still_one():
    array = np.arange(1 << 16)
    first, second = round_trip([array, array])
    assert first is second


@pytest.mark.parametrize(
    "obj", [threading.Lock(), (n for n in ()), BadDeparture("raise")], ids=["lock", "generator", "bad"]
)
def test_what_cannot_be_pickled_raises(obj):
    with pytest.raises((TypeError, ValueError)):
        pickling.encode([1, obj])
    with pytest.raises((TypeError, ValueError)):
        pickling.to_bytes(obj)


def test_nesting_too_deep_raises():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        pickling.encode(deep)


def test_modules_registered_by_value_go_by_value(tmp_path, monkeypatch, project):
    """What users do in notebooks with modules that they are still changing."""
    module = types.ModuleType("changing")
    exec("def function(n):\n    return n + 5\n", vars(module))
    monkeypatch.setitem(sys.modules, "changing", module)
    cloudpickle.register_pickle_by_value(module)
    try:
        pickled = pickling.function_to_bytes(module.function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    monkeypatch.delitem(sys.modules, "changing")
    assert pickling.decode(pickled)(1) == 6


def interrupt_and_add_to(done):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # the handler runs here
        pass
    done.append("imported")


def test_an_interrupt_takes_effect_after_an_import():
    """Python drops what is raised in callbacks of its import locks."""
    done = []
    with pytest.raises(KeyboardInterrupt), pickling.DeferredInterrupt():
        interrupt_and_add_to(done)
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_are_not_deferred_in_other_threads():
    """Only the main thread may set handlers, and only there is anything raised."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pickling.DeferredInterrupt().__enter__).result()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def capture(error, **options):
    try:
        raise error
    except BaseException as raised:
        return CapturedError(raised, **options)


def sent(error):
    """As it arrives on the other side."""
    return pickle.loads(pickle.dumps(capture(error, travels=True)))


def test_plain_exception_survives():
    arrived = sent(KeyError("a", 2))
    assert (arrived.kind, arrived.error_type, arrived.message) == ("exception", "KeyError", "('a', 2)")
    error = arrived.to_exception()
    assert type(error) is KeyError
    assert error.args == ("a", 2)


def test_our_own_errors_survive_with_their_context():
    error = sent(UsageError("wrong", help="do it right", value=3)).to_exception()
    assert type(error) is UsageError
    assert (error.message, error.help, error.context) == ("wrong", "do it right", {"value": 3})


@pytest.mark.parametrize(
    "error", [objects.TwoArguments("a", 1), objects.HoldsLock("x"), objects.KeywordOnly(reason="y")], ids=repr
)
def test_those_that_cannot_travel_are_named(error):
    arrived = sent(error)
    stand_in = arrived.to_exception()
    assert isinstance(stand_in, RemoteError)
    assert type(error).__name__ in str(stand_in)
    assert str(error) in str(stand_in)
    assert type(error).__name__ in arrived.traceback


def test_errors_that_a_retry_cannot_fix_are_final():
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO):
        assert sent(OSError(number, "full")).is_final
    assert sent(SourceChangedError("a.jsonl has changed")).is_final
    for error in (OSError(errno.EAGAIN, "later"), OSError(errno.ENOENT, "gone"), ValueError(28), OSError("?")):
        assert not sent(error).is_final


def test_lack_of_memory_has_its_own_kind():
    assert capture(MemoryError()).kind == "out_of_memory"
    assert capture(MemoryError(), kind="unpicklable").kind == "unpicklable"


def test_text_is_bounded():
    arrived = sent(ValueError("x" * 10_000_000))
    assert len(arrived.message) <= 1 << 17
    assert len(arrived.traceback) <= 1 << 17


def test_deep_recursion_has_a_bounded_traceback():
    def dive(n):
        return dive(n + 1)

    try:
        dive(0)
    except RecursionError as error:
        arrived = CapturedError(error, travels=True)
    assert arrived.error_type == "RecursionError"
    assert len(arrived.traceback) <= 1 << 17


def test_causes_are_in_the_traceback():
    try:
        try:
            raise ValueError("the root")
        except ValueError as cause:
            raise KeyError("the surface") from cause
    except KeyError as error:
        arrived = CapturedError(error, travels=True)
    assert "the root" in arrived.traceback
    assert "the surface" in arrived.traceback


def test_message_that_cannot_be_made():
    assert capture(objects.NoMessage()).error_type.endswith("NoMessage")
