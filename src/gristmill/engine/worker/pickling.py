"""Objects and exceptions to bytes and back: plain pickle when it suffices, else cloudpickle. The one door to
cloudpickle.

Workers do not import the user's `__main__`, so everything that is defined there must travel by value; plain pickle
would write a reference that no worker can follow. Large buffers (NumPy, Arrow, bytes) are not copied on the way out.

An exception travels as text (`CapturedError`) and, if it survives a round trip, as its own pickle. An exception class
whose `__init__` takes other arguments than its message would otherwise break the process that unpickles it, and other
results would be lost with it.
"""

from __future__ import annotations

import errno
import pickle
import signal
import sys
from functools import cache
from threading import current_thread, main_thread
from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, ModuleType
    from typing import Any, Literal

    Buffer = bytes | bytearray | memoryview
    Kind = Literal["exception", "timeout", "worker_died", "out_of_memory", "unpicklable"]

# Below this a buffer travels inside the pickle: a copy is cheaper than one more segment to allocate and receive.
_MIN_OUT_OF_BAND_BYTES = 16 * 1024
_MAX_TEXT = 64 * 1024
# The disk is full, read-only or broken, or the user may not write there: a retry changes nothing.
FINAL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})


class DeferredInterrupt:
    """A context for imports: Ctrl-C takes effect at its end.

    Python drops what a signal raises in the callbacks of its import locks, and the program would go on. In threads
    other than the main one nothing is raised anyway.
    """

    def __enter__(self) -> None:
        self._frames: list[FrameType | None] = []
        """Where the program was at each Ctrl-C."""
        self._handler = signal.getsignal(signal.SIGINT)
        try:
            if callable(self._handler):  # else the system ignores it, or it ends this process
                signal.signal(signal.SIGINT, lambda _, frame: self._frames.append(frame))
        except ValueError:  # not the main thread
            self._handler = None

    def __exit__(self, *_: object) -> None:
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            if self._frames:
                self._handler(signal.SIGINT, self._frames[0])


class KeptInterrupt:
    """A context that Ctrl-C ends also where Python drops what it raises: in a destructor or another callback.

    Only the main thread gets it; in others this does nothing.
    """

    def __enter__(self) -> None:
        self._dropped: BaseException | None = None
        self._hook = None
        if current_thread() is main_thread():
            self._hook, sys.unraisablehook = sys.unraisablehook, self._keep

    def _keep(self, dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            self._dropped = dropped.exc_value
        elif self._hook is not None:
            self._hook(dropped)

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            sys.unraisablehook = self._hook
        if self._dropped is not None:
            raise self._dropped


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
    """Pickle an object: return the pickle in segments, and the large buffers that are sent separately.

    Raises what the object's own `__reduce__` or the pickler raises when the object cannot be sent.
    """
    try:
        return _encode_with(_PlainPickler, obj)
    except RecursionError:
        raise
    except Exception:  # cloudpickle can do some of what plain pickle cannot
        return _encode_with(_load_script_pickler(), obj)


@cache
def _load_script_pickler() -> type[pickle.Pickler]:
    with DeferredInterrupt():
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
    with DeferredInterrupt():
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


class CapturedError:
    """An exception that was caught in a worker. `raised` is the object itself where it never left the process."""

    __slots__ = ("_pickled", "error_type", "is_final", "kind", "message", "raised", "traceback")

    def __init__(
        self, error: BaseException, kind: Kind = "exception", *, about: str = "", travels: bool = False
    ) -> None:
        import traceback  # noqa: PLC0415  (a worker imports it when something goes wrong, not before)

        # MemoryError depends on the machine, not on the record: it must not look like an ordinary exception.
        self.kind: Kind = "out_of_memory" if isinstance(error, MemoryError) and kind == "exception" else kind
        self.error_type = _qualify_name(type(error))
        self.message = f"{about}: {_format_message(error)}" if about else _format_message(error)
        self.is_final = _is_final_error(error)
        """Whether a retry cannot help."""
        try:
            # The first frame is the engine's own.
            inner = error.__traceback__ and error.__traceback__.tb_next
            lines = traceback.format_exception(type(error), error, inner)
            self.traceback = "".join(lines)[-_MAX_TEXT:]
        except Exception as problem:
            self.traceback = f"(the traceback could not be formatted: {problem!r})"
        self.raised: BaseException | None = None if travels else error
        self._pickled = _pickle_if_loadable(error) if travels else None

    def to_exception(self) -> BaseException:
        """Return the original exception if it could be sent, else a `RemoteError` that names it."""
        if self.raised is not None:
            return self.raised
        if self._pickled is not None:
            try:
                error = decode(self._pickled)
            except Exception:  # the worker could load it, but here its module may be missing
                error = None
            if isinstance(error, BaseException):
                return error
        from gristmill.core.errors import RemoteError  # noqa: PLC0415

        return RemoteError(f"{self.error_type}: {self.message}")

    def __getstate__(self) -> tuple[object, ...]:
        return self.kind, self.error_type, self.message, self.is_final, self.traceback, self._pickled

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.raised = None
        self.kind, self.error_type, self.message, self.is_final, self.traceback, self._pickled = state  # type: ignore[assignment]


def _is_final_error(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return isinstance(error.errno, int) and error.errno in FINAL_ERRNOS
    return bool(getattr(type(error), "is_final", False))


def _qualify_name(error_type: type[BaseException]) -> str:
    module = error_type.__module__
    return error_type.__qualname__ if module in ("builtins", "__main__") else f"{module}.{error_type.__qualname__}"


def _format_message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception as problem:
        return f"(its message could not be formatted: {problem!r})"


def _pickle_if_loadable(error: BaseException) -> bytes | None:
    """Pickle the exception, if unpickling it here gives the same class; else return None."""
    try:
        pickled = to_bytes(error.with_traceback(None))
        return pickled if type(decode(pickled)) is type(error) else None
    except BaseException:  # its own code runs here, and may even call sys.exit()
        return None
