"""Plugins: what installed packages add to Gristmill through entry points.

    [project.entry-points."gristmill.steps"]
    redact = "my_package.redact:Redact"

Finding a plugin looks for the entry points of all installed packages, once a process: 2 ms for 170 packages. A plugin's
module is imported only when its name is used. This module is the only one that reads entry points; the callers
(`recipe.load`, `readers.plugin_files`, `pipeline.barriers.table`, `pipeline.jobs.export`) check that the loaded
object is of the right kind.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import Distribution, EntryPoint

STEP, BARRIER, READER, EXPORT = "step", "barrier", "reader", "export"
GROUPS = {
    STEP: "gristmill.steps",
    BARRIER: "gristmill.barriers",
    READER: "gristmill.readers",
    EXPORT: "gristmill.exports",
}
"""The group of entry points for each kind of plugin."""
_MARK = b"[gristmill."
"""How each of these groups begins in the file `entry_points.txt` of a package."""


@dataclass(frozen=True, slots=True)
class PluginPackage:
    """An installed package that provides plugins."""

    name: str
    version: str
    distribution: Distribution = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def fingerprint(self) -> str:
        """Hash the files of the package as they are now: modules, data and entry points.

        An editable install lists none of its modules in its metadata; there the package's folder is hashed.
        """
        files = dict(_list_recorded_files(self.distribution)) or dict(_list_source_files(self.distribution))
        hasher = xxhash.xxh3_128((self.distribution.read_text("entry_points.txt") or "").encode())
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            hasher.update(f"\0{name}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
            hasher.update(content)
        return hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of a package: a step, a barrier, a reader or an export format."""

    kind: str
    name: str
    package: PluginPackage
    entry_point: EntryPoint = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of package {self.package}"

    def load(self) -> Any:
        """Import the module and return the object that the entry point names."""
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"{self} cannot be imported from {self.entry_point.value}: {type(error).__name__}: {error}",
                help=f"reinstall {self.package.name}; import {self.entry_point.module} in Python to see why",
            ) from error

    def make_type_error(self, loaded: object, expected: str) -> UsageError:
        """Make the error for a loaded object that is not of the expected kind."""
        return UsageError(
            f"{self}: {self.entry_point.value} must be {expected}, not {loaded!r:.100}",
            help=f"correct the entry point in the pyproject.toml of {self.package.name}",
        )


def list_plugins() -> tuple[Plugin, ...]:
    """List the plugins of all installed packages, without importing any."""
    return _scan_packages(tuple(sys.path))


def list_plugin_names(kind: str) -> list[str]:
    """List the names of all plugins of a kind, for suggestions."""
    return sorted({plugin.name for plugin in list_plugins() if plugin.kind == kind})


def find_plugin(kind: str, name: str) -> Plugin | None:
    """Find the plugin with this name; None if no installed package provides it.

    Raises:
        UsageError: Two packages provide it.
    """
    plugins = [plugin for plugin in list_plugins() if (plugin.kind, plugin.name) == (kind, name)]
    if len(plugins) > 1:
        packages = " and ".join(str(plugin.package) for plugin in plugins)
        raise UsageError(
            f"{kind} {name!r} is provided by several packages: {packages}",
            help=f"uninstall all but one of them, or rename the entry point in {plugins[-1].package.name}",
        )
    return plugins[0] if plugins else None


def refuse_shadowed(kind: str, name: str) -> None:
    """Raise `UsageError` if a package provides a plugin with the name of a built-in one."""
    plugin = find_plugin(kind, name)
    if plugin is not None:
        raise UsageError(
            f"package {plugin.package} provides the {kind} {name!r}, but that is the name of a built-in {kind}",
            help=f"rename the entry point in {plugin.package.name}, or uninstall the package",
        )


def find_package_of(module: str) -> PluginPackage | None:
    """Find the package with plugins that a module belongs to; None for modules of other packages."""
    for plugin in list_plugins():
        root = _find_root_package(plugin.entry_point.module)
        if module == root or module.startswith(f"{root}."):
            return plugin.package
    return None


@functools.cache  # by sys.path, so that a folder that is added to it is searched
def _scan_packages(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    kinds = {group: kind for kind, group in GROUPS.items()}
    packages: dict[str, list[Plugin]] = {}
    for distribution in _find_distributions(path):
        package = PluginPackage(distribution.name, distribution.version, distribution)
        key = re.sub(r"[-_.]+", "-", package.name).lower()
        if key not in packages:  # as for modules, the first on sys.path counts
            packages[key] = [
                Plugin(kinds[entry_point.group], entry_point.name, package, entry_point)
                for entry_point in distribution.entry_points
                if entry_point.group in kinds
            ]
    return tuple(plugin for key in sorted(packages) for plugin in packages[key])


def _find_distributions(path: Iterable[str]) -> Iterator[Distribution]:
    """Find the packages with entry points of ours, in the order of the path.

    Most packages have none. `importlib.metadata` takes 15 ms to import and makes objects for all of them, so folders
    are searched without it; it is left to search zip files.
    """
    for root in path:
        try:
            names = os.listdir(root or ".")  # noqa: PTH208
        except NotADirectoryError:
            from importlib.metadata import distributions  # noqa: PLC0415

            for distribution in distributions(path=[root]):
                if _MARK.decode() in (distribution.read_text("entry_points.txt") or ""):
                    yield distribution
            continue
        except OSError:
            continue
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info", "egg-info")):
                folder = Path(root, name)
                if _has_our_entry_points(folder):
                    from importlib.metadata import Distribution  # noqa: PLC0415

                    yield Distribution.at(folder)


def _has_our_entry_points(folder: Path) -> bool:
    try:
        with open(f"{folder}/entry_points.txt", "rb") as file:  # noqa: PTH123
            return _MARK in file.read()
    except OSError:
        return False


def _list_recorded_files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """List the modules and data of a package that its installer has recorded."""
    for file in distribution.files or ():
        is_metadata = file.parts[0].endswith((".dist-info", ".egg-info")) or file.parts[0] == ".."
        # An editable install records only a .pth file, or a module that finds the package's folder.
        is_link = len(file.parts) == 1 and (file.suffix == ".pth" or file.name.startswith("__editable__"))
        path = Path(str(file.locate()))
        if not is_metadata and not is_link and file.suffix != ".pyc" and path.is_file():
            yield file.as_posix(), path


def _list_source_files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """List the files in the folders of the packages, or the modules, that the entry points name."""
    modules = {entry_point.module for entry_point in distribution.entry_points if entry_point.group in GROUPS.values()}
    for root in {_find_root_package(module) for module in modules}:
        spec = _find_spec(root)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in Path(folder).rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    yield f"{root}/{path.relative_to(folder).as_posix()}", path
        if spec is not None and not spec.submodule_search_locations and spec.origin is not None:
            yield root, Path(spec.origin)


@functools.cache
def _find_root_package(module: str) -> str:
    """Find the outermost package of a module that is not a namespace package, which others may share.

    >>> _find_root_package("json.decoder"), _find_root_package("no_such_package.steps")
    ('json', 'no_such_package')
    """
    root, *rest = module.split(".")
    for part in rest:
        spec = _find_spec(root)
        if spec is None or spec.origin is not None:
            break
        root = f"{root}.{part}"
    return root


def _find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):  # a package around it cannot be imported, or is half imported
        return None
