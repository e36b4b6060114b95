"""Loops over numbers, compiled to machine code at their first call and cached in the user's cache folder.

`@kernel` is the one door to numba. Importing a module of kernels loads nothing. The first call loads numba (0.4 s),
and reads the machine code from its cache or compiles it (about a second a kernel).

Kernels are cached by numba, in one folder for each module of kernels. The name of the folder is a hash of everything
that numba does not look at: the content of the module and of the modules whose kernels it calls, and the constants of
all of them. So old code is never used for a changed source, no matter which file has changed. Numba itself adds the
types of arguments, the processor and its own version.

* Processes that compile at the same time take turns: numba's index can name another process's code otherwise.
* Files that are damaged are compiled again.
* What is read is run, so a folder in which other users can write is not used. There, and where nothing can be written
  (read-only home, full disk), each process compiles for itself.

Kernels write into arrays that they are passed: code that creates arrays takes several times as long to compile.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import sys
from importlib import import_module
from numbers import Number
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from gristmill.core.cache_folders import choose_cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_log = logging.getLogger("gristmill.kernels")

P = ParamSpec("P")
R = TypeVar("R")

_DIGEST_BYTES = 16
_locked: set[Path] = set()
"""The folders that this process has locked, in the thread that has numba's lock."""


class Kernel(Generic[P, R]):
    """A function that is compiled at its first call with arguments of new types. Releases the interpreter lock."""

    def __init__(self, function: Callable[P, R], *, is_inlined: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._is_inlined = is_inlined

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.dispatcher(*args, **kwargs)
        return result

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The numba dispatcher of the function."""
        import numba  # noqa: PLC0415
        from numba.core.compiler_lock import global_compiler_lock  # noqa: PLC0415

        function = self._with_dispatchers()
        is_in_file = os.path.isfile(function.__code__.co_filename)  # noqa: PTH113  (else it was typed at a prompt)
        folder = _make_folder(self.__module__) if is_in_file else None
        with global_compiler_lock:
            usual, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder or "")
            try:
                compiled = numba.njit(nogil=True, forceinline=self._is_inlined, cache=folder is not None)(function)
            finally:
                numba.config.CACHE_DIR = usual
        if folder is not None:
            compiled.compile = functools.partial(_compile_in_turn, compiled.compile, folder)
        return compiled

    def _with_dispatchers(self) -> FunctionType:
        """Return the function with numba's dispatchers instead of our wrappers, which numba does not understand."""
        function = self.function
        assert isinstance(function, FunctionType)
        names = dict(function.__globals__)
        for name in function.__code__.co_names:
            called = names.get(name)
            if isinstance(called, Kernel):
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
    """Compile a function into those that call it, regardless of its size.

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


def find_cache_folder() -> Path:
    """Return the folder of compiled kernels: below `NUMBA_CACHE_DIR` if that is set, else in the user's caches."""
    numba_folder = os.environ.get("NUMBA_CACHE_DIR")  # noqa: TID251  (numba's own setting)
    if numba_folder:
        return Path(numba_folder, "gristmill")
    return Path(choose_cache_folder(str(Path.home()), sys.platform, "kernels"))


def _find_marker(modules: Iterable[str]) -> Path:
    """Return the path of the marker file. Loads no numba, which takes as long as a small job."""
    from importlib.metadata import version  # noqa: PLC0415  (10 ms, and workers do not need it)

    files = [Path(str(import_module(name).__file__)) for name in modules]
    # Numba compiles again after a move of the source, or at another time of it.
    stamps = [(str(file), file.stat().st_mtime_ns) for file in files]
    shape = (stamps, version("numba"), sys.implementation.cache_tag, platform.machine())
    contents = b"".join(_hash_sources(name) for name in modules)
    return find_cache_folder() / f"compiled-{_digest(contents + repr(shape).encode()).hex()}"


def _make_folder(module: str) -> Path | None:
    """Make the folder for the kernels of a module; None if there can be none, or others could write into it."""
    try:
        caches = find_cache_folder()
        folder = caches / f"{module}-{_hash_sources(module).hex()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        states = caches.stat(), folder.stat()
    except (OSError, RuntimeError):  # there is no home folder, or it cannot be written
        return None
    if any(state.st_uid not in (os.geteuid(), 0) or state.st_mode & 0o022 for state in states):
        _warn_once(
            f"compiled kernels in {caches} are not used, because other users can change them; each process compiles "
            f"its own (to use them: chown and chmod 700 that folder)"
        )
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


@functools.cache
def _hash_sources(module: str) -> bytes:
    """Hash the content of a module of kernels, of those whose kernels it has imported, and their numbers."""
    sources: dict[str, bytes] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in sources:
            values = vars(import_module(name))
            if values.get("__file__") is None:
                raise FileNotFoundError(name)
            numbers = sorted((key, repr(value)) for key, value in values.items() if isinstance(value, Number))
            sources[name] = Path(values["__file__"]).read_bytes() + repr(numbers).encode()
            pending += [value.__module__ for value in values.values() if isinstance(value, Kernel)]
    return _digest(repr(sorted(sources.items())).encode())


def _compile_in_turn(compile_now: Callable[[object], object], folder: Path, signature: object) -> object:
    """Let numba load or compile a function for new types while no other process does so in the same folder."""
    from numba.core.compiler_lock import global_compiler_lock  # noqa: PLC0415

    with global_compiler_lock, _lock(folder):
        if not any(folder.rglob("*.nbi")):
            _warn_once("compiling kernels for this machine; this takes some seconds and happens only once")
        try:
            return compile_now(signature)
        except Exception:
            # Files of the cache are damaged, or the disk is full. Numba keeps in memory what it could not save, so the
            # second time succeeds; a mistake in a kernel is raised again.
            for index in folder.rglob("*.nbi"):
                with contextlib.suppress(OSError):
                    index.unlink()
            return compile_now(signature)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep other processes from compiling into a folder; a kernel that calls another one compiles that meanwhile."""
    if folder in _locked:
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):  # a file system without locks, or Windows
            import fcntl  # noqa: PLC0415

            file = stack.enter_context((folder / "lock").open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        _locked.add(folder)
        stack.callback(_locked.remove, folder)
        yield


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)
