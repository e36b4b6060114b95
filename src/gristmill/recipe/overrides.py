"""`--set key=value`: changes of a recipe from the command line. Values are YAML; a key is a path with dots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.recipe.yaml_tree import parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.recipe.yaml_tree import Path, Tree


def apply_overrides(tree: Tree, overrides: Iterable[str]) -> None:
    """Set each `key=value` in the tree: `seed=3`, `steps.0.length.min_chars=5`, `sources.web.read=[a.jsonl]`."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"--set {override}: not key=value", help="write --set seed=3 or --set steps.0.length.min_chars=5"
            )
        place = f"--set {override}"
        value = parse_value(text, place)
        path = _set_value(tree, key.strip().split("."), value, place)
        for old_path in [old_path for old_path in tree.places if old_path[: len(path)] == path]:
            del tree.places[old_path]
        tree.places[path] = place


def _set_value(tree: Tree, keys: list[str], value: Any, place: str) -> Path:
    if tree.data is None:
        tree.data = {}
    holder: Any = tree.data
    path: list[str | int] = []
    for index, key in enumerate(keys):
        position = _find_position(holder, key, place)
        path.append(position)
        if index == len(keys) - 1:
            holder[position] = value
            break
        inner = holder.get(position) if isinstance(holder, dict) else holder[position]
        if isinstance(holder, list) and isinstance(inner, str):  # a step without parameters: `- length`
            inner = {inner: {}}
        elif inner is None:
            inner = {}
        holder[position] = inner
        holder = inner
    return tuple(path)


def _find_position(holder: Any, key: str, place: str) -> str | int:
    if isinstance(holder, dict):
        return key
    if not isinstance(holder, list):
        raise UsageError(f'{place}: cannot set "{key}", the value before it is {holder!r}')
    if not key.isdecimal() or int(key) >= len(holder):
        raise UsageError(f'{place}: "{key}" is not one of the {len(holder)} items', help=_describe_items(holder))
    return int(key)


def _describe_items(items: list[Any]) -> str:
    names = [next(iter(item), "") if isinstance(item, dict) else item for item in items]
    return "they are " + ", ".join(f"{index} ({name})" for index, name in enumerate(names))
