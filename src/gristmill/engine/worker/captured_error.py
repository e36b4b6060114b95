"""An exception on its way from the function to the caller.

It travels as text and, if it survives a round trip, as its own pickle. An exception class whose `__init__` takes other
arguments than its message would otherwise break the process that unpickles it, and other results would be lost with it.
"""

from __future__ import annotations

import errno

from gristmill.engine.worker import pickling

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from gristmill.engine.failure import Kind

_MAX_TEXT = 64 * 1024
# The disk is full, read-only or broken, or the user may not write there: a retry changes nothing.
FINAL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})


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
                error = pickling.decode(self._pickled)
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
        pickled = pickling.to_bytes(error.with_traceback(None))
        return pickled if type(pickling.decode(pickled)) is type(error) else None
    except BaseException:  # its own code runs here, and may even call sys.exit()
        return None
