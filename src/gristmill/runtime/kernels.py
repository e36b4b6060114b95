"""Loops over numbers, compiled to machine code at their first call and cached in the user's cache folder.

`@kernel` is the one door to numba. Importing a module of kernels loads nothing. The first call reads the machine code
from a file (a few ms), or loads numba (0.4 s) and compiles it if there is no such file yet (about a second).

A compiled function is in two files: `.code` is loaded without numba (`machine_code`), and `.bin` by numba, which is
used where it is loaded already and for what the other way does not understand. The name of both is a hash of everything
that determines the code: the content of the kernel's module, the types of its arguments, the processor, the versions of
Python and numba. Therefore

* old code is never used for a changed source, and equal sources share code wherever they are installed;
* processes that compile at the same time need no lock: each writes its own temporary file and renames it, and files of
  the same name are interchangeable (numba's own cache keeps an index, which can end up naming another process's code);
* a file that is truncated or damaged fails its checksum and is replaced;
* where the folder cannot be written (read-only home, full disk), each process compiles for itself.

A kernel may call other kernels of its own module, and none from elsewhere: their content would not be in its name.
For the same reason it takes no constants from other modules. Kernels write into arrays that they are passed: code that
creates arrays takes several times as long to compile.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import platform
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from gristmill.core.cache_folders import choose_cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gristmill.runtime.machine_code import NativeFunction, StoredCode

_log = logging.getLogger("gristmill.kernels")

P = ParamSpec("P")
R = TypeVar("R")

_DIGEST_BYTES = 16
_FORMAT = 3
"""Raised when the content of files changes, so that files of other versions are not found."""


class Kernel(Generic[P, R]):
    """A function that is compiled at its first call with arguments of new types. Releases the interpreter lock."""

    def __init__(self, function: Callable[P, R], *, is_inlined: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._native: dict[tuple[str, ...], NativeFunction | None] = {}
        self._is_inlined = is_inlined

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R
        native = self._find_native(args) if not kwargs and "numba" not in sys.modules else None
        if native is not None:
            succeeded, result = native.call(args)
            if succeeded:
                return result
        result = self.dispatcher(*args, **kwargs)
        return result

    def _find_native(self, args: tuple[Any, ...]) -> NativeFunction | None:
        """Return the function compiled for such arguments, if it can be called without numba."""
        from gristmill.runtime.machine_code import NativeFunction, describe_arguments  # noqa: PLC0415  (no kernel: no code)

        types = describe_arguments(args)
        if types is None:
            return None
        if types not in self._native:
            stored = _CodeFiles(self.function).load_native(types) if _can_load_native() else None
            self._native[types] = None if stored is None else NativeFunction(stored, types)
        return self._native[types]

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The numba dispatcher of the function."""
        import numba  # noqa: PLC0415

        compiled = numba.njit(nogil=True, forceinline=self._is_inlined)(self._with_dispatchers())
        compiled._cache = _CodeFiles(self.function)  # what `cache=True` sets, but with our own files
        return compiled

    def _with_dispatchers(self) -> FunctionType:
        """Return the function with numba's dispatchers in place of our wrappers, which numba does not understand."""
        function = self.function
        assert isinstance(function, FunctionType)
        names = dict(function.__globals__)
        for name in function.__code__.co_names:
            called = names.get(name)
            if isinstance(called, Kernel):
                if called.__module__ != function.__module__:
                    raise TypeError(f"kernel {function.__qualname__} calls {name}, which is not in its module")
                names[name] = called.dispatcher
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a function at its first call.

    >>> @kernel
    ... def total(numbers):
    ...     result = 0
    ...     for number in numbers:
    ...         result += number
    ...     return result
    >>> import numpy as np
    >>> total(np.array([1, 2, 3]))
    6
    """
    return Kernel(function)


def inlined_kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a function into those that call it, whatever its size.

    For what is called for each word: passing arrays and returning several numbers would take as long as the work.
    """
    return Kernel(function, is_inlined=True)


def are_compiled(modules: Iterable[str]) -> bool:
    """Whether `mark_compiled` was called for the kernels of these modules as they are now, on this machine."""
    return _find_marker(modules).exists()


def mark_compiled(modules: Iterable[str]) -> None:
    """Remember that the kernels of these modules are cached, unless the folder cannot be written."""
    marker = _find_marker(modules)
    with contextlib.suppress(OSError):
        marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker.touch()


def _find_marker(modules: Iterable[str]) -> Path:
    """Return the path of the marker file. Loads no numba, which takes as long as a small job."""
    sources = [Path(spec.origin).read_bytes() for name in modules if (spec := find_spec(name)) and spec.origin]
    shape = (_FORMAT, _find_numba_version(), sys.implementation.cache_tag, platform.machine())
    return find_cache_folder() / f"compiled-{_digest(b''.join([*sources, repr(shape).encode()])).hex()}"


@functools.cache
def _find_numba_version() -> str:
    """Find the version of numba without importing it; by the name of its metadata, to import nothing else (10 ms)."""
    spec = find_spec("numba")
    folders = [*Path(spec.origin).parents[1].glob("numba-*.dist-info")] if spec and spec.origin else []
    if len(folders) == 1:
        return folders[0].name.removeprefix("numba-").removesuffix(".dist-info")
    from importlib.metadata import version  # noqa: PLC0415

    return version("numba")


def _can_load_native() -> bool:
    """Whether compiled kernels may be called without numba: not if its own settings could have shaped their code."""
    settings = {name for name in os.environ if name.startswith("NUMBA_")}  # noqa: TID251  (numba's own settings)
    from gristmill.runtime.machine_code import can_load  # noqa: PLC0415

    return can_load() and settings <= {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}


def find_cache_folder() -> Path:
    """Return the folder of compiled kernels: below `NUMBA_CACHE_DIR` if that is set, else in the user's caches."""
    numba_folder = os.environ.get("NUMBA_CACHE_DIR")  # noqa: TID251  (numba's own setting)
    return Path(numba_folder, "gristmill") if numba_folder else _choose_default_folder()


def _choose_default_folder() -> Path:
    return Path(choose_cache_folder(str(Path.home()), sys.platform, "kernels"))


class _CodeFiles:
    """The cached machine code of one function, with the methods that numba's dispatcher expects of a cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.cache_path: str | None = None
        try:
            self._source = Path(function.__code__.co_filename).read_bytes()
            self.cache_path = str(find_cache_folder())
        except (OSError, RuntimeError):  # the function was typed at a prompt, or there is no home folder
            pass

    def load_native(self, types: tuple[str, ...]) -> StoredCode | None:
        """Load the function compiled for these types in the form that needs no numba, or return None."""
        from gristmill.runtime.machine_code import StoredCode  # noqa: PLC0415

        code = _read_code(self._native_file(types)) if self.cache_path is not None else None
        return None if code is None else StoredCode.decode(code)

    def load_overload(self, signature: object, target_context: Any) -> Any:
        """Load the function compiled for these types, or return None."""
        from numba.core.compiler import CompileResult  # noqa: PLC0415
        from numba.core.runtime import rtsys  # noqa: PLC0415

        if self.cache_path is None:
            return None
        # All that compiled code needs to run. Numba's own cache initializes the whole compiler here: 0.4 s.
        rtsys.initialize(target_context)
        path = self._file(signature, target_context.codegen())
        code = _read_code(path)
        if code is not None:
            return CompileResult._rebuild(target_context, *pickle.loads(code))
        if not path.exists():
            _warn_once("compiling kernels for this machine; this takes some seconds and happens only once")
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Save the machine code for the next process."""
        from numba.core.serialize import dumps  # noqa: PLC0415

        from gristmill.runtime.machine_code import describe_types, extract_code  # noqa: PLC0415

        if self.cache_path is None or compiled.lifted or compiled.library.has_dynamic_globals:
            return
        types = describe_types(signature)
        native = extract_code(compiled) if types is not None and _can_load_native() else None
        try:
            if types is not None and native is not None:
                _write_code(self._native_file(types), native.encode())
            _write_code(self._file(signature, compiled.codegen), dumps(compiled._reduce()))
        except OSError:
            self.cache_path = None

    def _native_file(self, types: tuple[str, ...]) -> Path:
        from gristmill.runtime.machine_code import describe_processor  # noqa: PLC0415

        return self._path((_find_numba_version(), describe_processor(), types), "code")

    def _file(self, signature: object, codegen: Any) -> Path:
        import numba  # noqa: PLC0415

        return self._path((numba.__version__, codegen.magic_tuple(), signature), "bin")

    def _path(self, shape: tuple[object, ...], suffix: str) -> Path:
        name = self._function.__qualname__
        # With the module: numba imports it when it loads the code, and after a move there is none of the old name.
        described = repr((_FORMAT, sys.implementation.cache_tag, self._function.__module__, *shape)).encode()
        key = _digest(b"\0".join([self._source, name.encode(), described])).hex()
        return Path(str(self.cache_path), f"{name.replace('<locals>', '')}-{key}.{suffix}")


def _read_code(path: Path) -> bytes | None:
    """Read stored code; None if there is none, or if it is damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, code = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return code if digest == _digest(code) else None


def _write_code(path: Path, code: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(_digest(code) + code)
        temporary.replace(path)
    except OSError:
        _remove_quietly(temporary)
        raise


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)


def _remove_quietly(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:
        pass
