"""Fingerprints: hashes of everything that decides the bytes of an output.

What decides none (workers, backend, timeouts, limits) is not part of them. The packages of plugins are part of every
one, by name, version and the content of their files, so an edited plugin is noticed even if its version stays the same.
All work of the recipe is done again then, since nothing tells which modules of a package a step depends on. The output
folder records the packages too, to name the one of a step or reader that is no longer installed.
"""

from __future__ import annotations

import platform
import sys
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.recipe import step_parameters
from gristmill.pipeline.work_folder import PLUGINS
from gristmill.readers.formats import FORMATS, file_format
from gristmill.readers.read import Read
from gristmill.runtime.functions import Function
from gristmill.runtime.plugins import BARRIER, READER, STEP, find_package_of, find_plugin
from gristmill.shards.manifest_file import load_manifest
from gristmill.storage.commit import write_file
from gristmill.storage.locations import read_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.runtime.plugins import PluginPackage
    from gristmill.storage.locations import Location


# Libraries whose version may change the bytes that they write or the records that they accept.
_FINGERPRINTED_LIBRARIES = ("lz4", "msgspec", "numpy", "pyarrow", "xxhash", "zstandard")


def find_versions() -> dict[str, str]:
    """Find the versions that the output depends on, for fingerprints and the manifest."""
    libraries = {name: metadata.version(name) for name in _FINGERPRINTED_LIBRARIES}
    # Not imported by name: in the layer contract the package itself is above everything that it exports.
    own = sys.modules["gristmill"].__version__
    return {"gristmill": own, "python": platform.python_version(), **libraries}


def of(*parts: Any) -> str:
    """Hash plain data to 128 bits."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))


def describe_steps(steps: Iterable[Step]) -> list[Any] | None:
    """List the names, versions, parameters and code of steps; None if the code of a function cannot be known."""
    described = []
    for step in steps:
        parameters = {
            name: value for name, value in step_parameters(step).items() if name not in step.not_fingerprinted
        }
        for name, value in parameters.items():
            if isinstance(value, Function):
                parameters[name] = value.fingerprint()
                if parameters[name] is None:
                    return None
        described.append([step.name, step.fingerprint_versions, parameters])
    return described


def find_used_plugins(recipe: Recipe, sources: Iterable[SourcePlan]) -> dict[str, PluginPackage]:
    """Find the packages of the steps, barriers and readers that are not built in, by `kind name`."""
    packages: dict[str, PluginPackage] = {}
    steps = [step for _, step in recipe.all_steps()]
    reads: list[tuple[Read, Sequence[SourceFile]]] = []
    for source in sources:
        steps += [step for stage in source.stages for step in stage.all_steps]
        reads.append((source.read, source.files))
    for step in steps:
        read = getattr(step, "read", None)  # of files besides those of the sources, as in deduplicate: {against: …}
        if isinstance(read, Read):
            reads.append((read, step.input_files()))
        package = _find_step_package(step)
        if package is not None:
            packages[f"{STEP} {step.name}"] = package
            barrier = find_plugin(BARRIER, step.name)
            if barrier is not None:
                packages[f"{BARRIER} {step.name}"] = barrier.package
    for read, files in reads:
        for kind in {file_format(file.path, read.format) for file in files[:1]} - set(FORMATS):
            reader = find_plugin(READER, kind)
            if reader is not None:
                packages[f"{READER} {kind}"] = reader.package
    return packages


def _find_step_package(step: Step) -> PluginPackage | None:
    """Find the package that defines the class of a step, or else a base of it."""
    modules = [base.__module__ for base in type(step).__mro__]
    foreign = (module for module in modules if module.partition(".")[0] not in ("gristmill", "msgspec", "builtins"))
    return next((package for module in foreign if (package := find_package_of(module)) is not None), None)


def describe_packages(packages: Iterable[PluginPackage]) -> dict[str, str]:
    """Describe packages for fingerprints and the manifest: version and content, by name."""
    by_name = {package.name: package for package in packages}
    return {name: f"{package.version} {package.fingerprint()}" for name, package in sorted(by_name.items())}


def record_plugins(output: Location, plugins: Mapping[str, str], run_id: str) -> None:
    """Write the plugins of a run to its work folder."""
    write_file(output / PLUGINS, msgspec.json.encode(plugins), run_id)


@contextmanager
def name_missing_packages(read_plugins: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Name the package of a plugin that is not installed, in errors about unknown steps and formats.

    `read_plugins` returns the plugins of the run that made the folder; it is called only after an error.
    """
    try:
        yield
    except UsageError as error:
        if error.context.keys() & {f"unknown_{STEP}", f"unknown_{READER}"}:
            name_missing_package(error, read_plugins())
        raise


def name_missing_package(error: UsageError, plugins: Mapping[str, str]) -> None:
    """Change an error about an unknown step or format, if `plugins` tells its package."""
    for kind, noun in ((STEP, "step"), (READER, "format")):
        name = error.context.get(f"unknown_{kind}")
        package, _, version = plugins.get(f"{kind} {name}", "").rpartition(" ")
        if package:
            error.message = f'{noun} "{name}" comes from package {package} {version}, which is not installed'
            error.args = (error.message,)
            error.help = f"install it: pip install {package}=={version}"


def read_recorded_plugins(output: Location) -> Mapping[str, str]:
    """Read the plugins that an unfinished run or the dataset in the folder has used, if there is one."""
    try:
        return msgspec.json.decode(read_stored(output / PLUGINS), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, GristmillError):
        pass  # there is no such run, or it uses no plugins
    try:
        return load_manifest(output).plugins
    except (OSError, GristmillError):
        return {}
