"""A user's function as data: `file.py:function` or `package.module:function` in a recipe, any callable in Python.

A function that is named is imported where it is used, so it pickles as two strings. A callable is pickled
itself and cannot be written to a recipe file. `runtime.source_code` fingerprints its code.

Processes on other machines never import their copies of the user's files. The files of functions and the project's
modules that they import travel as text, as they are on the driver. Where this code is installed, a finder before all
others makes modules of it, under the paths that the files have on the driver. A module that is imported by a computed
name does not travel.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.step import UserCode
from gristmill.runtime import source_code
from gristmill.runtime.source_code import read_project_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import CodeType, ModuleType


class Function(UserCode):
    """A function to call on records or batches.

    >>> Function.of(str.upper)("mill")
    'MILL'
    >>> str(Function.of("functions.py:clean"))
    'functions.py:clean'
    >>> Function.of("posixpath:basename")("data/web.jsonl")
    'web.jsonl'
    """

    __slots__ = ("_called", "name", "path")

    def __init__(self, path: str | None, name: str, called: Callable[..., Any] | None = None) -> None:
        self.path = path
        """The file that defines the function, absolute once its recipe is loaded, or the dotted name of its module;
        None for a Python object.
        """
        self.name = name
        self._called = called

    @classmethod
    def of(cls, value: object) -> Function:
        """Create a Function from `file.py:function`, `package.module:function`, a callable, or a Function."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            path, _, name = value.rpartition(":")
            names = name.split(".") if path.endswith(".py") else [*path.split("."), *name.split(".")]
            if not all(part.isidentifier() for part in names):
                raise UsageError(
                    f"call must name a function as file.py:function or package.module:function, not {value!r}",
                    help="write call: functions.py:my_function; the path starts at the recipe",
                )
            return cls(path, name)
        if callable(value):
            return cls(None, getattr(value, "__qualname__", type(value).__qualname__), value)
        raise UsageError(f"call must be a function or file.py:function, not {value!r}")

    @property
    def is_in_module(self) -> bool:
        """Whether it is named by the module that defines it, not by a file."""
        return self.path is not None and not self.path.endswith(".py")

    def in_folder(self, folder: str) -> Function:
        """Return the function with its file in this folder, as an absolute path."""
        if self.path is None or self.is_in_module:
            return self
        return Function(str(Path(folder, self.path).absolute()), self.name)

    def __call__(self, *arguments: Any) -> Any:
        return self.resolve()(*arguments)

    def resolve(self) -> Callable[..., Any]:
        """Return the callable. Imports its file if it is new or has changed: one `stat`, so call it once a batch.

        Raises `UsageError` if there is no such file or function.
        """
        if self._called is not None:
            return self._called
        path = self.path or ""
        if not self.is_in_module:
            path = os.path.abspath(path)  # noqa: PTH100  (Path.resolve would follow links)
        target: Any = _import_module(path) if self.is_in_module else _import_current(path)
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

    def fingerprint(self) -> str | None:
        """Hash the code that it may run; None if that cannot be determined. Then no earlier work may be reused."""
        if self.path is None:
            return source_code.fingerprint_callable(self.resolve())
        file = self.find_file()
        return None if file is None else source_code.fingerprint_file(file, self.name)

    def bind(self, arguments: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the callable with these arguments: of a class whose objects can be called, such an object.

        Raises `UsageError` if the class cannot be constructed.
        """
        called = self.resolve()
        is_stateful = isinstance(called, type) and any("__call__" in vars(base) for base in called.__mro__)
        if not is_stateful:
            return functools.partial(called, **arguments) if arguments else called
        try:
            constructed: Callable[..., Any] = called(**arguments)
        except Exception as error:
            raise UsageError(
                f"constructing {self} failed: {type(error).__name__}: {error}",
                help="its __init__ gets what `args` of the step holds",
            ) from error
        return constructed

    def find_file(self) -> str | None:
        """Find the file that defines it; None if there is none, or it cannot be known."""
        if self.is_in_module:
            file = inspect.getsourcefile(_import_module(self.path or ""))
            return file if file is not None and file.endswith(".py") else None
        if self.path is not None:
            return self.path
        code = getattr(inspect.unwrap(self.resolve()), "__code__", None)
        return code.co_filename if code is not None and Path(code.co_filename).is_file() else None

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
"""By path: the text of files as they are on another machine, which count here."""


def use_shipped_files(files: dict[str, str]) -> None:
    """Import the files of functions from these texts from now on, no matter what is at their paths."""
    _shipped_files.clear()
    _shipped_files.update(files)


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"importing {name} failed: {type(error).__name__}: {error}",
            help="a package must be installed next to gristmill; for a file next to the recipe write file.py:function",
        ) from error


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
    """Compiles a file as it is now, or a text. Python's own caches by whole seconds, and writes a file."""

    def __init__(self, fullname: str, path: str, text: str | None) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        return super().get_data(path) if self._text is None else self._text.encode("utf-8", "surrogateescape")

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)


@functools.cache
def _import_file(path: str, mtime_ns: int, num_bytes: int, text: str | None = None) -> ModuleType:  # noqa: ARG001  (they are the cache's key)
    # As for a script, so that the file can import the modules next to it.
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


@dataclass(frozen=True, slots=True)
class ShippedCode:
    """Files of functions, and the modules that they import."""

    files: tuple[tuple[str, str], ...] = ()
    """The path of each file that defines functions, and its text."""
    modules: tuple[tuple[str, str, str], ...] = ()
    """The dotted name of each module, its path and its text."""

    def install(self) -> None:
        """Use this code in this process, no matter what files there are."""
        use_shipped_files(dict(self.files))
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _ShippedFinder)]
        if self.modules:
            sys.meta_path.insert(0, _ShippedFinder(self.modules))


def collect_code(functions: Iterable[Function]) -> ShippedCode:
    """Read the files of functions and what they import of the project.

    Raises `UsageError` if two different modules have one name: on other machines no folder distinguishes them.
    """
    files: dict[str, str] = {}
    modules: dict[str, tuple[str, str]] = {}
    for function in functions:
        path = function.find_file()
        if path is None:
            continue
        for name, file, text in read_project_files(path):
            if name is None and function.is_in_module:
                if not source_code.is_versioned(file):  # an installed package is on each machine
                    modules[function.path or ""] = str(file), text
            elif name is None:
                files[str(file)] = text
            elif modules.setdefault(name, (str(file), text))[1] != text:
                raise UsageError(
                    f"two modules are called {name}: {modules[name][0]} and {file}",
                    help="rename one of them, or put their functions into one file",
                )
    return ShippedCode(tuple(sorted(files.items())), tuple((name, *module) for name, module in sorted(modules.items())))


class _ShippedFinder(MetaPathFinder):
    """Finds modules among those that were shipped; their packages too, where these have no file."""

    def __init__(self, modules: Iterable[tuple[str, str, str]]) -> None:
        self._modules = {name: (path, text) for name, path, text in modules}
        self._packages = {
            ".".join(name.split(".")[:length]) for name in self._modules for length in range(1, name.count(".") + 1)
        }

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  (names decide, not folders)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname in self._modules:
            file, text = self._modules[fullname]
            is_package = fullname in self._packages or file.endswith("__init__.py")
            spec = ModuleSpec(fullname, _SourceLoader(fullname, file, text), origin=file, is_package=is_package)
            spec.has_location = True
            return spec
        return ModuleSpec(fullname, None, is_package=True) if fullname in self._packages else None
