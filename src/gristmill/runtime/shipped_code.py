"""A user's code as it is on the driver, for processes on other machines: their own copies are never imported.

The files of functions and the project's modules that they import travel as text. Where the code is installed, a finder
in front of all others makes modules of it, under the paths that the files have on the driver. A module that is
imported by a computed name does not travel.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.runtime.function import Function, use_shipped_files
from gristmill.runtime.source_code import read_project_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType, ModuleType


@dataclass(frozen=True, slots=True)
class ShippedCode:
    """Files of functions, and the modules that they import."""

    files: tuple[tuple[str, str], ...] = ()
    """The path of each file that defines functions, and its text."""
    modules: tuple[tuple[str, str, str], ...] = ()
    """The dotted name of each module, its path and its text."""

    def install(self) -> None:
        """Use this code in this process, whatever files there are."""
        use_shipped_files(dict(self.files))
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _ShippedFinder)]
        if self.modules:
            sys.meta_path.insert(0, _ShippedFinder(self.modules))


def collect_code(functions: Iterable[Function]) -> ShippedCode:
    """Read the files of functions and what they import of the project.

    Raises `UsageError` if two different modules have one name: on other machines they cannot be told apart by folder.
    """
    files: dict[str, str] = {}
    modules: dict[str, tuple[str, str]] = {}
    for function in functions:
        path = function.find_file()
        if path is None:
            continue
        for name, file, text in read_project_files(path):
            if name is None:
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
            spec = ModuleSpec(fullname, _TextLoader(text, file), origin=file, is_package=is_package)
            spec.has_location = True
            return spec
        return ModuleSpec(fullname, None, is_package=True) if fullname in self._packages else None


class _TextLoader(InspectLoader):
    """Loads a module from its text."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path

    def get_source(self, fullname: str) -> str:  # noqa: ARG002
        return self._text

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(self._text, self._path, "exec", dont_inherit=True)
