"""The fingerprint of a function's code: a hash of the files it is made of and the values it holds.

The files are the one that defines it and the project's own modules that it imports, followed through their `import`
statements without running anything. Installed packages and the standard library are represented by their versions.
Values are its defaults, its closure, and the plain constants of its module that it names. A function of a script takes
all that it names in the script along to workers, so all of that counts: `args`, a configuration, a class, what other
functions name. Hashing a pickle of the function instead would give another answer in each process. Modules imported by
a computed name are not seen.

Cost: each file is read and parsed once, about 1 ms for 200 lines.
"""

from __future__ import annotations

import ast
import copyreg
import ctypes
import dis
import functools
import inspect
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import xxhash

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_MAX_SHOWN_BYTES = 1 << 10
_SCRIPT = "__main__"
"""The module whose functions and classes travel to workers by value."""


class _UnknownCode(Exception):
    """The code or a value cannot be determined."""


def fingerprint_file(path: str, name: str) -> str:
    """Fingerprint `name` in this file: the file and what it imports of the project."""
    return _hash(["file", name, *_list_project_files(path)])


def fingerprint_callable(called: object) -> str | None:
    """Fingerprint the code and values of a callable; None if that is impossible (typed at a prompt, not picklable)."""
    try:
        return _hash(["callable", *_ValueDescriber().describe(called)])
    except (_UnknownCode, RecursionError):
        return None


def find_project_modules() -> list[ModuleType]:
    """Find the modules of the user's project that are loaded: those that fingerprints represent by their content."""
    roots = [str(root) for root in _find_project_roots()]
    modules = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        has_its_name = getattr(module, "__name__", None) == name != "__main__"
        is_below_root = isinstance(path, str) and path.endswith(".py") and path.startswith(tuple(roots))
        if has_its_name and is_below_root and not is_versioned(Path(str(path))):
            modules.append(module)
    return modules


def _hash(parts: list[str]) -> str:
    hasher = xxhash.xxh3_128()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little") + encoded)
    return hasher.hexdigest()


class _ValueDescriber:
    """Describes values in words that are the same in every process."""

    def __init__(self, outer: _ValueDescriber | None = None) -> None:
        self._open: set[int] = set(outer._open if outer else ())
        self._described: dict[object, int] = dict(outer._described if outer else {})
        """Functions, classes and files that were described, numbered: many functions may name one, and each other."""

    def describe(self, value: object) -> Iterator[str]:
        """Yield the words that describe a value and everything that it holds."""
        if isinstance(value, bytes) and len(value) > _MAX_SHOWN_BYTES:  # such as the content of an array
            yield f"bytes {len(value)} {xxhash.xxh3_128_hexdigest(value)}"
            return
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self._open:  # a list that holds itself
            yield "again"
            return
        if isinstance(value, (FunctionType, type)):
            if value in self._described:
                yield f"again {self._described[value]}"
                return
            self._described[value] = len(self._described)
        self._open.add(id(value))
        yield from self._describe_object(value)
        self._open.remove(id(value))

    def _describe_object(self, value: Any) -> Iterator[str]:
        yield type(value).__name__
        match value:
            case FunctionType():
                yield from self._describe_function(value)
            case MethodType():
                yield from self._describe_all([value.__func__, value.__self__])
            case functools.partial():
                yield from self._describe_all([value.func, value.args, value.keywords])
            case ModuleType():
                yield value.__name__
            case type():
                yield from self._describe_class(value)
            case list() | tuple():
                yield from self._describe_all(value)
            case dict():
                yield from self._describe_all(value.items())
            case set() | frozenset():
                # Each separately: what was described before must not depend on the order of a set.
                yield from sorted(_hash(list(_ValueDescriber(self).describe(item))) for item in value)
            case BuiltinFunctionType() | MethodDescriptorType() | WrapperDescriptorType():
                yield f"{getattr(value, '__module__', None)}.{value.__qualname__}"
                yield from self.describe(getattr(value, "__self__", None))
            case _:
                yield from self._describe_instance(value)

    def _describe_all(self, values: Collection[object]) -> Iterator[str]:
        yield str(len(values))
        for value in values:
            yield from self.describe(value)

    def _describe_function(self, function: FunctionType) -> Iterator[str]:
        code = function.__code__
        yield function.__qualname__
        if not Path(code.co_filename).is_file():  # typed at a prompt or in a notebook, made by exec
            path = getattr(sys.modules.get(function.__module__), "__file__", None)
            if path is None or not is_versioned(Path(path)):
                raise _UnknownCode
            yield function.__module__  # of a package, whose version counts: frozen, or made by a decorator
            return
        yield from self._describe_file(code.co_filename)
        yield from self._describe_code(code)
        yield from self._describe_all([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not bound yet
                raise _UnknownCode from None
            yield from self.describe(content)
        for name in sorted(set(_list_global_names(code)) & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, _PLAIN) or function.__module__ == _SCRIPT:
                yield name
                yield from self.describe(value)

    def _describe_code(self, code: CodeType) -> Iterator[str]:
        """Describe which of the file's functions it is. The line is not enough: it may hold two lambdas."""
        yield f"line {code.co_firstlineno} {code.co_code.hex()} {code.co_names}"
        for constant in code.co_consts:
            yield from self._describe_code(constant) if isinstance(constant, CodeType) else self.describe(constant)

    def _describe_class(self, value: type) -> Iterator[str]:
        yield f"{value.__module__}.{value.__qualname__}"
        path = getattr(sys.modules.get(value.__module__), "__file__", None)
        if path is not None and path.endswith(".py") and Path(path).is_file():
            yield from self._describe_file(path)
        elif value.__module__ == _SCRIPT:
            raise _UnknownCode
        if value.__module__ == _SCRIPT:
            yield from self._describe_members(value)

    def _describe_members(self, value: type) -> Iterator[str]:
        """Describe what a class of a script takes along: its values, what its methods name, and its bases."""
        for name, member in sorted(vars(value).items()):
            content = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            if isinstance(content, FunctionType):
                is_known = Path(content.__code__.co_filename).is_file()  # else made from the class, by a decorator
            else:
                is_known = isinstance(content, (*_PLAIN, *_CONTAINERS)) and not name.startswith("__")
            if is_known:
                yield name
                yield from self.describe(content)
        yield from self._describe_all(value.__bases__)

    def _describe_instance(self, value: Any) -> Iterator[str]:
        """Describe an object by what its pickle would hold. The pickle itself has sets in the order of a process."""
        if hasattr(value, "__wrapped__"):  # a decorator's object around a function
            yield from self.describe(value.__wrapped__)
        yield from self.describe(type(value))
        if type(value).__module__ == "torch.storage":  # its pickle has addresses
            storage = getattr(value, "_untyped_storage", value).cpu()
            yield from self.describe(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
            return
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
            parts = [reduced] if isinstance(reduced, str) else [*reduced[:3], *map(list, filter(None, reduced[3:5]))]
        except Exception:
            raise _UnknownCode from None
        yield from self._describe_all(parts)

    def _describe_file(self, path: str) -> Iterator[str]:
        if path in self._described:
            yield f"again {self._described[path]}"
        else:
            self._described[path] = len(self._described)
            yield from _list_project_files(path)


def _list_global_names(code: CodeType) -> Iterator[str]:
    """List the names that code, and the code inside it, looks up in its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_global_names(constant)


def read_project_files(path: str) -> Iterator[tuple[str | None, Path, str]]:
    """Read a file and the project's own modules that it imports; yield the dotted name, path and text of each.

    The file itself comes first, and has no name.
    """
    first = Path(path).absolute()
    names: dict[Path, str | None] = {first: None}
    waiting = [first]
    roots = [first.parent, *_find_project_roots()]
    while waiting:
        file = waiting.pop()
        try:
            text = file.read_text("utf-8", "surrogateescape")
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}", path=str(file)) from error
        yield names[file], file, text
        if is_versioned(first):
            return
        for name, module in _find_imported_files(file, text, roots):
            if module not in names:
                names[module] = name
                waiting.append(module)


def _list_project_files(path: str) -> list[str]:
    """List the names and contents of a file and of what it imports, in a fixed order."""
    return sorted(f"{name or file.name}\n{text}" for name, file, text in read_project_files(path))


def _find_imported_files(path: Path, content: str, roots: list[Path]) -> Iterator[tuple[str, Path]]:
    try:
        tree = ast.parse(content, str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path}{f', line {line}' if line else ''}: {error}", path=str(path)) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _find_module_files(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            start = [path.parents[node.level - 1]] if 0 < node.level <= len(path.parents) else roots
            module = node.module or ""
            yield from _find_module_files(module, start)
            for alias in node.names:
                yield from _find_module_files(f"{module}.{alias.name}".lstrip("."), start)


def _find_module_files(name: str, roots: list[Path]) -> Iterator[tuple[str, Path]]:
    """Find the files of a dotted module and of the packages around it, if it belongs to the project."""
    parts = [part for part in name.split(".") if part]
    for root in roots:
        folder = root
        files: list[tuple[str, Path]] = []
        for index, part in enumerate(parts):
            dotted = ".".join(parts[: index + 1])
            folder /= part
            for candidate in (folder / "__init__.py", folder.with_name(f"{part}.py")):
                if candidate.is_file():
                    files.append((dotted, candidate))
                    break
        if files:  # this root's module is the one that is imported, even if its version represents it
            yield from (file for file in files if not is_versioned(file[1]))
            return


def _find_project_roots() -> list[Path]:
    """Find the folders that modules are imported from, without the standard library and installed packages."""
    roots = [Path(entry or ".").resolve() for entry in sys.path]
    return [root for root in roots if root.is_dir() and not is_versioned(root)]


@functools.cache
def _find_versioned_folders() -> tuple[str, ...]:
    """Find the standard library, installed packages and this package: their versions represent their code."""
    paths = sysconfig.get_paths()
    libraries = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*libraries, *site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])]
    return tuple({os.path.join(os.path.realpath(folder), "") for folder in folders})  # noqa: PTH118


def is_versioned(path: Path) -> bool:
    """Whether a file belongs to Python or an installed package, which its version represents."""
    # Asked for every import of a project: as strings this takes a tenth of the time.
    return os.path.join(os.path.realpath(path), "").startswith(_find_versioned_folders())  # noqa: PTH118
