"""YAML as plain data with the line of every value, and changes of it from the command line (`--set key=value`).

Values follow YAML 1.2: `no` and `on` are words (a language, not false), `5e-3` is a number, `2024-01-01` is a text,
`010` is ten. Duplicate keys are refused; PyYAML would silently keep the last one. A value of `--set` is YAML, too, and
its key a path with dots.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from gristmill.core.errors import UsageError
from gristmill.storage.urls import redact

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable


Path = tuple[str | int, ...]

_MAX_RECIPE_BYTES = 16 << 20
_MAX_NODES = 100_000  # a few lines of aliases can expand to billions of nodes
_MAX_DEPTH = 50
_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, without its rules for plain words, which are those of YAML 1.1."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own way)


def add_number_forms(resolver: type[yaml.resolver.BaseResolver]) -> None:
    """Tell a loader or a dumper which plain words are not texts."""
    for tag, pattern, first in _SCALARS:
        resolver.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern})$"), first)


add_number_forms(_Loader)


@dataclass(slots=True)
class Tree:
    """Plain data, and the line of each value in it."""

    data: Any
    places: dict[Path, str] = field(default_factory=dict)
    """`recipe.yaml, line 7`, for each key, item and value."""

    def find_place(self, path: Path) -> str:
        """Return the line of a value, or of the nearest value around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "")

    def error(self, path: Path, message: str, *, help: str | None = None) -> UsageError:
        """Return an error about the value at a path."""
        place = self.find_place(path)
        where = ".".join(map(str, path))
        return UsageError(f"{place}: {message}" if place else message, help=help, key=where, place=place)


def read_recipe_text(path: pathlib.Path) -> str:
    """Read a recipe file, or standard input as `-`. A named pipe would be waited for, and `/dev/zero` never ends."""
    if str(path) == "-":
        data = sys.stdin.buffer.read(_MAX_RECIPE_BYTES + 1)
        if len(data) > _MAX_RECIPE_BYTES:
            raise UsageError(f"standard input has more than {_MAX_RECIPE_BYTES:,} bytes, which no recipe has")
        return data.decode("utf-8-sig")
    if not path.is_file() and path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a regular file", help="name the YAML file of the recipe")
    if path.is_file() and (num_bytes := path.stat().st_size) > _MAX_RECIPE_BYTES:
        raise UsageError(
            f"{path} has {num_bytes:,} bytes, and a recipe has at most {_MAX_RECIPE_BYTES:,}",
            help="name the YAML file of the recipe; files are listed by a pattern, not one by one",
        )
    return path.read_text("utf-8-sig")


def parse_yaml(text: str, name: str) -> Tree:
    """Parse one YAML document; `name` is its file in messages."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _make_syntax_error(error, text, name) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{name}, line {line}: not YAML: the character {text[error.position]!r}", line=line) from error
    except RecursionError as error:
        raise UsageError(f"{name}: nested too deeply for a recipe") from error
    builder = _Builder(name)
    data = None if node is None else builder.build(node, ())
    return Tree(data, builder.places)


def parse_value(text: str, name: str) -> Any:
    """Parse one YAML value, as in `--set key=value`."""
    return parse_yaml(text, name).data


def _make_syntax_error(error: yaml.MarkedYAMLError, text: str, name: str) -> UsageError:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    lines = text.splitlines()
    source_line = lines[line] if line < len(lines) else ""
    if "\t" in source_line[: len(source_line) - len(source_line.lstrip())]:
        return UsageError(f"{name}, line {line + 1}: a tab", help="YAML is indented with spaces only", line=line + 1)
    source_line = redact(source_line)
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    return UsageError(
        f"{name}, line {line + 1}: not YAML: {problem}", help=f"the line is {source_line!r}", line=line + 1
    )


class _Builder:
    """Converts nodes to plain data and keeps the line of each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_nodes = 0
        self.places: dict[Path, str] = {}

    def build(self, node: yaml.Node, path: Path) -> Any:
        """Convert a node and all nodes below it."""
        self._num_nodes += 1
        place = self._describe_place(node)
        if self._num_nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
            raise UsageError(f"{place}: nested too deeply or too large for a recipe")
        self.places.setdefault(path, place)  # a key was noted before its value: its line is the better one
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._build_scalar(node)

    def _build_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._read_key(key_node)
            if key in data:
                first = self.places[(*path, key)]
                raise UsageError(
                    f'{self._describe_place(key_node)}: "{key}" is set twice', help=f"the first one is in {first}"
                )
            self.places[(*path, key)] = self._describe_place(key_node)
            data[key] = self.build(value_node, (*path, key))
        return data

    def _read_key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise UsageError(f"{self._describe_place(node)}: a key must be a word")
        return str(node.value)

    def _build_scalar(self, node: yaml.Node) -> Any:
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag == "int":
            digits = node.value.lower()
            try:
                return int(digits, 0 if digits.startswith(("0o", "0x")) else 10)
            except ValueError:  # Python reads no number of more than 4,300 digits
                raise UsageError(f"{self._describe_place(node)}: a number of {len(digits):,} digits") from None
        if tag == "float":
            return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if tag == "bool":
            return node.value.lower() == "true"
        if tag == "null":
            return None
        if tag == "str":
            return node.value
        raise UsageError(f"{self._describe_place(node)}: {node.tag} is not used in recipes")

    def _describe_place(self, node: yaml.Node) -> str:
        return f"{self._name}, line {node.start_mark.line + 1}"


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


def edit_text(text: str, overrides: Iterable[str]) -> str:
    """Make the changes of `apply_overrides` in the text of a recipe; comments and everything else stay as they are.

    >>> edit_text("steps: [length: {min_chars: 5}]  # short", ["steps.0.length.min_chars=9"])
    'steps: [length: {min_chars: 9}]  # short'
    """
    for override in overrides:
        key, _, value = override.partition("=")
        text = _edit_value(text, key.strip().split("."), value)
    return text


def _edit_value(text: str, keys: list[str], value: str) -> str:
    node = yaml.compose(text, Loader=_Loader)
    for index, key in enumerate(keys):
        pair = f"{key}: {_write_flow(keys[index + 1 :], value)}"
        start, end = node.start_mark, node.end_mark.index
        if isinstance(node, yaml.ScalarNode):  # a step without parameters, or a key without a value
            change = pair if node.value == key else f" {{{pair}}}"
            return text[: start.index] + change + text[end:]
        if isinstance(node, yaml.SequenceNode):
            node = node.value[int(key)]
            continue
        inner = next((value_node for key_node, value_node in node.value if key_node.value == key), None)
        if inner is None:  # a new key comes first: where the last one ends is known only without comments
            first = start.index + 1 if node.flow_style else start.index
            separator = f"\n{' ' * start.column}" if not node.flow_style else ", " if node.value else ""
            return text[:first] + pair + separator + text[first:]
        node = inner
    return text[: node.start_mark.index] + value + text[node.end_mark.index :]


def _write_flow(keys: list[str], value: str) -> str:
    return f"{{{keys[0]}: {_write_flow(keys[1:], value)}}}" if keys else value


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
