"""A user's function as data: written `file.py:function` in a recipe, or any callable in Python.

A function that is named by its file is imported where it is used, so it pickles as two strings. A callable is pickled
itself and cannot be written to a recipe file. `runtime.source_code` fingerprints its code.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest
from gristmill.core.step import UserCode
from gristmill.runtime import source_code

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType


class Function(UserCode):
    """A function to call on records or batches.

    >>> Function.of(str.upper)("mill")
    'MILL'
    >>> str(Function.of("functions.py:clean"))
    'functions.py:clean'
    """

    __slots__ = ("_called", "name", "path")

    def __init__(self, path: str | None, name: str, called: Callable[..., Any] | None = None) -> None:
        self.path = path
        """The file that defines the function, absolute once its recipe is loaded; None for a Python object."""
        self.name = name
        self._called = called

    @classmethod
    def of(cls, value: object) -> Function:
        """Create a Function from `file.py:function`, a callable, or a Function."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            path, _, name = value.rpartition(":")
            if not path.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
                raise UsageError(
                    f"call must name a function as file.py:function, not {value!r}",
                    help="put the function in a Python file beside the recipe and write call: functions.py:my_function",
                )
            return cls(path, name)
        if callable(value):
            return cls(None, getattr(value, "__qualname__", type(value).__qualname__), value)
        raise UsageError(f"call must be a function or file.py:function, not {value!r}")

    def in_folder(self, folder: str) -> Function:
        """Return the function with its file in this folder, as an absolute path."""
        return self if self.path is None else Function(str(Path(folder, self.path).absolute()), self.name)

    def __call__(self, *arguments: Any) -> Any:
        return self.resolve()(*arguments)

    def resolve(self) -> Callable[..., Any]:
        """Return the callable. Imports its file if it is new or has changed: one `stat`, so call it once a batch.

        Raises `UsageError` if there is no such file or function.
        """
        return self._look_up() if self._called is None else self._called

    def fingerprint(self) -> str | None:
        """Hash the code that it may run; None if that cannot be determined. Then no earlier work may be reused."""
        if self.path is not None:
            return source_code.fingerprint_file(self.path, self.name)
        return source_code.fingerprint_callable(self.resolve())

    def find_file(self) -> str | None:
        """Find the file that defines it; None if there is none, or it cannot be known."""
        if self.path is not None:
            return self.path
        code = getattr(inspect.unwrap(self.resolve()), "__code__", None)
        return code.co_filename if code is not None and Path(code.co_filename).is_file() else None

    def _look_up(self) -> Callable[..., Any]:
        path = os.path.abspath(self.path or "")  # noqa: PTH100  (Path.resolve would follow links)
        target: Any = _import_current(path)
        for part in self.name.split("."):
            if not hasattr(target, part):
                callables = [name for name, value in vars(target).items() if callable(value)]
                nearest = find_nearest(part, callables)
                own = [name for name in callables if getattr(vars(target)[name], "__module__", None) == target.__name__]
                hint = f'did you mean "{nearest}"?' if nearest else f"it defines {', '.join(own) or 'no function'}"
                raise UsageError(f'{self.path} has no function "{self.name}"', help=hint, path=path)
            target = getattr(target, part)
        if not callable(target):
            raise UsageError(f"{self} is not a function but {type(target).__name__}: {target!r}", path=path)
        function: Callable[..., Any] = target
        return function

    def __str__(self) -> str:
        return self.name if self.path is None else f"{self.path}:{self.name}"

    def __repr__(self) -> str:
        return f"Function({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Function):
            return NotImplemented
        if self.path is None or other.path is None:
            return self.path == other.path and self._called == other._called
        return (self.path, self.name) == (other.path, other.name)

    def __hash__(self) -> int:
        return hash((self.path, self.name))

    def __reduce__(self) -> tuple[object, ...]:
        return Function, (self.path, self.name, self._called if self.path is None else None)


_shipped_files: dict[str, str] = {}
"""By path: the text of files as they are on another machine, which counts here (`runtime.shipped_code`)."""


def use_shipped_files(files: dict[str, str]) -> None:
    """Import the files of functions from these texts from now on, whatever is at their paths."""
    _shipped_files.clear()
    _shipped_files.update(files)


def _import_current(path: str) -> ModuleType:
    """Return the module of a file, imported again whenever the file has changed."""
    if path in _shipped_files:
        return _import_file(path, 0, 0, _shipped_files[path])
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", help="the path in call: starts at the recipe's folder", path=path
        ) from error
    return _import_file(path, status.st_mtime_ns, status.st_size)


class _SourceLoader(SourceFileLoader):
    """Compiles the file as it is now. Python's own loader caches by whole seconds, and writes beside the source."""

    def __init__(self, fullname: str, path: str, text: str | None) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        return super().get_data(path) if self._text is None else self._text.encode("utf-8", "surrogateescape")

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)


@functools.cache
def _import_file(path: str, mtime_ns: int, num_bytes: int, text: str | None = None) -> ModuleType:  # noqa: ARG001  (they are the cache's key)
    # As for a script, so that the file can import the modules beside it.
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"{Path(path).stem}_{xxhash.xxh3_64_hexdigest(path.encode())}"
    loader = _SourceLoader(name, path, text)
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=path))
    module.__file__ = path
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UsageError(
            f"importing {path} failed{place}: {type(error).__name__}: {error}",
            help=f"run `python {path}` to see the error by itself",
            path=path,
        ) from error
    return module
