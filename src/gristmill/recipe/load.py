"""Recipes from YAML. Loading is strict: every error names the line and the nearest valid name.

A class of steps is imported when a recipe names it, not before. A step is built in, or comes from an installed package
(`runtime.plugins`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from gristmill import steps
from gristmill.core.checks import describe_type, find_nearest, parse_byte_size, parse_count
from gristmill.core.errors import UsageError
from gristmill.core.recipe import AUTO, Recipe, RunSettings, Source
from gristmill.core.step import GlobalStep, LocalStep, Step, check_choices
from gristmill.pipeline.planning.fingerprint import name_missing_packages, read_recorded_plugins
from gristmill.readers.read import to_path
from gristmill.recipe.yaml_tree import apply_overrides, parse_yaml, read_recipe_text
from gristmill.runtime.plugins import STEP, find_plugin, list_plugin_names, refuse_shadowed

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from gristmill.recipe.yaml_tree import Path as TreePath
    from gristmill.recipe.yaml_tree import Tree
    from gristmill.runtime.plugins import Plugin

_EXAMPLES = {"output": "output: out", "sources": "sources: {web: {read: data/*.jsonl}}"}
_COUNT = re.compile(r"\d[\d_.,]*[KMBGTkmbgt]")
_PATH_IN_ERROR = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
# `read` is how a source begins, not a step in a list.
STEPS = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): name for name in steps.__all__ if name != "Read"}


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe file; `-` is standard input, with paths from the current folder.

    `overrides` are changes as in `--set`: `["seed=3"]`.
    """
    file = Path(path)
    try:
        text = read_recipe_text(file)
    except FileNotFoundError:
        raise UsageError(f"there is no recipe {path}", help="gristmill init writes one to start from") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, not a recipe", help="name the YAML file of the recipe") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    recipe = parse_recipe(text, name=str(path), folder=str(file.absolute().parent), overrides=overrides)
    changes = "".join(f"# --set {change}\n" for change in overrides)
    msgspec.structs.force_setattr(recipe, "written", f"# {file.name}\n{changes}{text}")
    return recipe


def parse_recipe(
    text: str, *, name: str = "recipe", folder: str | None = None, overrides: Sequence[str] = ()
) -> Recipe:
    """Parse a recipe from YAML text.

    >>> recipe = parse_recipe("{output: out, sources: {web: {read: '*.jsonl'}}, steps: [length: {min_chars: 5}]}")
    >>> recipe.steps
    (Length(min_chars=5, max_chars=None),)
    """
    tree = parse_yaml(text, name)
    apply_overrides(tree, overrides)
    return _RecipeReader(tree, folder).read_recipe()


_NOT_IN_YAML = ("folder", "written")


class _RecipeReader:
    """Converts the tree of one recipe to structs."""

    def __init__(self, tree: Tree, folder: str | None) -> None:
        self._tree = tree
        self._folder = folder

    def read_recipe(self) -> Recipe:
        """Convert the whole tree. Raises `UsageError` with the line of the first mistake."""
        data = self._expect_mapping((), self._tree.data, "a recipe")
        types = {field.name: field.type for field in msgspec.structs.fields(Recipe) if field.name not in _NOT_IN_YAML}
        self._check_keys((), data, types, "a recipe")
        for key in ("output", "sources"):
            if data.get(key) is None:
                raise self._tree.error((key,), f"the recipe has no {key}", help=f"add {_EXAMPLES[key]}")
        if data.get("run") is not None:
            settings = self._expect_mapping(("run",), data["run"], "run")
            self._check_keys(("run",), settings, RunSettings.__struct_fields__, "run")
        values = {
            key: self._convert((key,), value, types[key])
            for key, value in self._parse_sizes((), data, types).items()
            if key not in ("sources", "steps")
        }
        sources = self._expect_mapping(("sources",), data["sources"], "sources")
        read_sources = {name: self._read_source(("sources", name), source) for name, source in sources.items()}
        common = self._read_steps(("steps",), data.get("steps"))
        try:
            return Recipe(sources=read_sources, steps=common, folder=self._folder, **values)
        except UsageError as error:
            path = tuple(str(error.context.get("key", "")).split("."))
            raise self._tree.error(path, error.message, help=error.help) from error

    def _read_recorded_plugins(self) -> Mapping[str, str]:
        """Read which package a missing step came from, where the recipe was run before."""
        output = self._tree.data.get("output")
        return read_recorded_plugins(Path(self._folder or ".", output)) if isinstance(output, str) else {}

    def _read_source(self, path: TreePath, data: Any) -> Source:
        if isinstance(data, (str, list)):
            raise self._tree.error(path, f"source {path[-1]} needs a key read", help=f"write {path[-1]}: {{read: …}}")
        parameters = dict(self._expect_mapping(path, data, f"source {path[-1]}"))
        own = self._read_steps((*path, "steps"), parameters.pop("steps", None))
        paths = parameters.get("read")
        if isinstance(paths, dict):
            if "train" not in paths:
                hint = "read: {train: data/train*.jsonl, validation: data/val.jsonl}"
                raise self._tree.error((*path, "read"), "read has splits, and none is train", help=hint)
            parameters["read"] = {
                split: self._read_paths((*path, "read", split), part) for split, part in paths.items()
            }
        elif isinstance(paths, list):
            parameters["read"] = self._read_paths((*path, "read"), paths)
        read = self._make_step(path, parameters, steps.Read, f"source {path[-1]}", extra=("steps",))
        return Source(read, own)

    def _read_paths(self, path: TreePath, paths: Any) -> str | list[str]:
        if isinstance(paths, str):
            return paths
        if not isinstance(paths, list) or not all(isinstance(item, str) for item in paths):
            raise self._tree.error(path, f"{path[-1]} must be a path or a list of paths", help="as data/*.jsonl")
        try:
            return [to_path(item) for item in paths]
        except UsageError as error:
            raise self._tree.error(path, error.message, help=error.help) from None

    def _read_steps(self, path: TreePath, data: Any) -> list[Step]:
        if data is None:
            return []
        if not isinstance(data, list):
            raise self._tree.error(
                path, f"steps must be a list, not {_describe(data)}", help="begin each step with a dash"
            )
        return [self._read_step((*path, index), item) for index, item in enumerate(data)]

    def _read_step(self, path: TreePath, data: Any) -> Step:
        if isinstance(data, str):
            data = {data: None}
        if not isinstance(data, dict) or len(data) != 1:
            problem = (
                "several steps in one item" if isinstance(data, dict) and data else f"not a step: {_describe(data)}"
            )
            raise self._tree.error(
                path, problem, help="write each step as `- name: {key: value}`, keys indented further"
            )
        name, parameters = next(iter(data.items()))
        path = (*path, name)
        try:
            with name_missing_packages(self._read_recorded_plugins):
                step_type = step_class(name)
        except UsageError as error:
            raise self._tree.error(path, error.message, help=error.help) from None
        if parameters is not None and not isinstance(parameters, dict):
            raise self._tree.error(
                path,
                f"{name} must be `key: value` pairs, not {_describe(parameters)}",
                help=_suggest_pairs(step_type, parameters),
            )
        return self._make_step(path, parameters or {}, step_type, name)

    def _make_step(
        self, path: TreePath, parameters: dict[str, Any], step_type: type[Step], noun: str, extra: Iterable[str] = ()
    ) -> Step:
        self._check_keys(path, parameters, [*step_type.__struct_encode_fields__, *extra], noun)
        types = {field.name: field.type for field in msgspec.structs.fields(step_type)}
        step: Step = self._convert(path, self._parse_sizes(path, parameters, types), step_type)
        return step

    def _parse_sizes(self, path: TreePath, data: dict[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
        """Replace numbers of bytes that are written with a unit, `64MiB`, and large numbers, `20G`, by integers."""
        converted = dict(data)
        for key, value in data.items():
            if not isinstance(value, str) or (key, value) == ("slice_bytes", AUTO):
                continue
            kinds = set(get_args(types.get(key))) or {types.get(key)}
            try:
                if key.endswith("_bytes"):
                    converted[key] = parse_byte_size(key, value)
                elif int in kinds and str not in kinds and _COUNT.fullmatch(value):
                    converted[key] = parse_count(key, value)
            except UsageError as error:
                raise self._tree.error((*path, key), error.message, help=error.help) from None
        return converted

    def _expect_mapping(self, path: TreePath, data: Any, noun: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise self._tree.error(path, f"{noun} must be `key: value` pairs, not {_describe(data)}")
        return data

    def _check_keys(self, path: TreePath, data: dict[str, Any], valid_keys: Iterable[str], noun: str) -> None:
        names = list(valid_keys)
        for key in data:
            if key not in names:
                meant = find_nearest(key, names)
                hint = f'did you mean "{meant}"?' if meant else f"there are {', '.join(names) or 'none'}"
                raise self._tree.error((*path, key), f'{noun} has no key "{key}"', help=hint)

    def _convert(self, path: TreePath, value: Any, target_type: Any) -> Any:
        try:
            if isinstance(target_type, type) and issubclass(target_type, Step):
                check_choices(target_type, value)
            return msgspec.convert(value, describe_type(target_type))
        except UsageError as error:
            raise self._locate_step_error(path, value, error) from error
        except msgspec.ValidationError as error:
            raise self._locate_error(path, value, error) from error

    def _locate_step_error(self, path: TreePath, value: Any, error: UsageError) -> UsageError:
        """Locate an error of a step's own check, whose message names the key if possible."""
        with suppress(UsageError), name_missing_packages(self._read_recorded_plugins):
            raise error
        named = [key for key in value if re.search(rf"\b{re.escape(key)}\b", error.message)]
        return self._tree.error((*path, *named[:1]), f"{path[-1]}: {error.message}", help=error.help)

    def _locate_error(self, path: TreePath, value: Any, error: msgspec.ValidationError) -> UsageError:
        if isinstance(error.__cause__, UsageError):
            return self._locate_step_error(path, value, error.__cause__)
        message = str(error)
        inner = _PATH_IN_ERROR.search(message)
        keys = _parse_keys(inner[1]) if inner else ()
        where = ".".join(map(str, (*path, *keys)))
        problem = _PATH_IN_ERROR.sub("", message)
        if problem.startswith("Expected") and "[...]" not in message and "key in" not in message:
            problem += f": {_describe(reduce(getitem, keys, value))}"
        return self._tree.error((*path, *keys), f"{where}: {problem}")


def _suggest_pairs(step_type: type[Step], value: Any) -> str:
    """Say how a step is written, with the key that a value without a key was probably meant for."""
    names = step_type.__struct_encode_fields__
    for name in names:
        with suppress(msgspec.ValidationError):
            msgspec.convert({name: value}, step_type)
            return f"did you mean {step_type.__struct_config__.tag}: {{{name}: {value}}}?"
    return f"write {{key: value}}; the keys are {', '.join(names)}" if names else "leave it out: the step has no keys"


def _parse_keys(text: str) -> TreePath:
    """Parse `.columns[0]` as a path; `[...]` is a key of a mapping that msgspec does not name."""
    path: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", text):
        path.append(name or int(index))
    return tuple(path)


def _describe(data: Any) -> str:
    return "nothing" if data is None else repr(data) if len(repr(data)) < 60 else type(data).__name__


def step_class(name: str) -> type[Step]:
    """Return the class of a step by its name in recipes.

    >>> step_class("map_batches").__name__
    'MapBatches'
    """
    if name == "read":
        raise UsageError("read is not a step: it starts a source", help="put it under sources")
    if name in STEPS:
        refuse_shadowed(STEP, name)
        step_type: type[Step] = getattr(steps, STEPS[name])
        return step_type
    plugin = find_plugin(STEP, name)
    if plugin is not None:
        return _load_step(plugin)
    names = [*STEPS, *list_plugin_names(STEP)]
    meant = find_nearest(name, names)
    raise UsageError(
        f'there is no step "{name}"',
        help=f'did you mean "{meant}"?' if meant else f"the steps are {', '.join(names)}",
        unknown_step=name,
    )


def _load_step(plugin: Plugin) -> type[Step]:
    loaded = plugin.load()
    if not (isinstance(loaded, type) and issubclass(loaded, (LocalStep, GlobalStep))):
        raise plugin.make_type_error(loaded, "a class derived from LocalStep, FilterStep or GlobalStep")
    tag = loaded.__struct_config__.tag
    if tag != plugin.name:
        raise UsageError(
            f"{plugin}: the tag of {loaded.__name__} is {tag!r}, so manifests and books would name it otherwise",
            help=f'write class {loaded.__name__}(…, tag="{plugin.name}")',
        )
    return loaded
