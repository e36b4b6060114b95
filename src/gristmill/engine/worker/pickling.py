"""Objects to bytes and back: plain pickle when it suffices, else cloudpickle. The one door to cloudpickle.

Workers do not import the user's `__main__`, so whatever is defined there must travel by value; plain pickle would
write a reference that no worker can follow. Large buffers (NumPy, Arrow, bytes) are not copied on the way out.
"""

from __future__ import annotations

import pickle
from functools import cache
from types import FunctionType

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Buffer = bytes | bytearray | memoryview

# Below this a buffer travels inside the pickle: a copy is cheaper than one more segment to allocate and receive.
_MIN_OUT_OF_BAND_BYTES = 16 * 1024


class _NeedsCloudpickle(Exception):
    """The object refers to something of `__main__`."""


class _SegmentFile:
    """A file for a pickler that collects writes in a list. The pickler passes objects over 64 KiB without a copy."""

    def __init__(self) -> None:
        self.segments: list[Buffer] = []
        self.write: Callable[[Buffer], object] = self.segments.append


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:  # called for every object that is not of a builtin type
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            raise _NeedsCloudpickle
        return NotImplemented


def encode(obj: object) -> tuple[list[Buffer], list[memoryview]]:
    """Pickle an object: return the pickle in segments, and the large buffers that are sent beside it.

    Raises whatever the object's own `__reduce__` or the pickler raises when the object cannot be sent.
    """
    try:
        return _encode_with(_PlainPickler, obj)
    except RecursionError:
        raise
    except Exception:  # cloudpickle can do some of what plain pickle cannot
        return _encode_with(_load_script_pickler(), obj)


@cache
def _load_script_pickler() -> type[pickle.Pickler]:
    import cloudpickle  # noqa: PLC0415

    class ScriptPickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Cloudpickle, with instances of classes with `__slots__` that find their way back.

        The copy of such a class that cloudpickle makes in a worker has a `__dict__`, which also holds the slots. The
        class itself has none to put them into: slots travel as slots only.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) or "__slots__" not in vars(type(obj)) or type(obj).__module__ != "__main__":
                return super().reducer_override(obj)
            match reduced := obj.__reduce_ex__(5):
                case (function, arguments, (dict() as attributes, dict() as slots), *rest):
                    if attributes.keys() <= slots.keys():
                        return function, arguments, (None, slots), *rest
            return reduced

    return ScriptPickler


def _encode_with(pickler: Callable[..., pickle.Pickler], obj: object) -> tuple[list[Buffer], list[memoryview]]:
    file = _SegmentFile()
    buffers: list[memoryview] = []

    def keep_large(buffer: pickle.PickleBuffer) -> bool:  # False: it is kept here; True: write it into the pickle
        view = buffer.raw()
        if view.nbytes < _MIN_OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    pickler(file, protocol=5, buffer_callback=keep_large).dump(obj)
    return file.segments, buffers


def decode(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Unpickle an object that `encode` has pickled."""
    return pickle.loads(body, buffers=buffers)


def to_bytes(obj: object) -> bytes:
    """Pickle an object to one self-contained byte string: for objects that are small or sent once."""
    file = _SegmentFile()
    try:
        _PlainPickler(file, protocol=5).dump(obj)
    except Exception:  # as in `encode`
        return function_to_bytes(obj)
    return b"".join(file.segments)


def function_to_bytes(obj: object, by_value: Sequence[ModuleType] = ()) -> bytes:
    """Like `to_bytes`, but respects modules that the user registered to be pickled by value; `by_value` are more."""
    import cloudpickle  # noqa: PLC0415

    registered = cloudpickle.list_registry_pickle_by_value()
    modules = [module for module in by_value if module.__name__ not in registered]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(obj, protocol=5)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled
