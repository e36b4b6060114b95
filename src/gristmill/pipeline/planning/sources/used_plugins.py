"""The plugins that a recipe uses: their packages are part of every fingerprint, and the output folder records them.

A package counts with its name, its version and the content of its files, so an edited plugin is noticed even if its
version stays the same. All work of the recipe is done again then, since nothing tells which modules of a package a step
depends on.

The record names the package of a step or reader that is no longer installed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import GristmillError, UsageError
from gristmill.pipeline.work_folder import PLUGINS
from gristmill.runtime.plugins import BARRIER, READER, STEP, find_package_of, find_plugin
from gristmill.shards.manifests.manifest_file import load_manifest
from gristmill.steps.read import Read, file_format
from gristmill.steps.read.read import FORMATS
from gristmill.storage.commit import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.pipeline.planning.sources.source_plan import SourcePlan
    from gristmill.runtime.plugins import PluginPackage
    from gristmill.storage.locations import Location


def find_used_plugins(recipe: Recipe, sources: Iterable[SourcePlan]) -> dict[str, PluginPackage]:
    """Find the packages of the steps, barriers and readers that are not built in, by `kind name`."""
    packages: dict[str, PluginPackage] = {}
    steps = [step for _, step in recipe.all_steps()]
    reads: list[tuple[Read, Sequence[SourceFile]]] = []
    for source in sources:
        steps += [step for stage in source.stages for step in stage.all_steps]
        reads.append((source.read, source.files))
    for step in steps:
        read = getattr(step, "read", None)  # of files beside those of the sources, as in deduplicate: {against: …}
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
        return msgspec.json.decode((output / PLUGINS).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        pass  # there is no such run, or it uses no plugins
    try:
        return load_manifest(output).plugins
    except (OSError, GristmillError):
        return {}
