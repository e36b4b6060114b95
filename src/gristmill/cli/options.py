"""Options that several commands share."""

import ast
import collections.abc
import inspect
import re
import sys
import typing
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVar

import click

from gristmill.core.checks import find_nearest, parse_byte_size
from gristmill.core.errors import UsageError
from gristmill.engine.parallel_run import BACKENDS

F = TypeVar("F", bound=Callable[..., Any])


class Choice(click.Choice[str]):
    """A choice between words. The shell completes it, and its error names the nearest word."""

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        word = re.match(r"'([^']*)'", message)
        nearest = find_nearest(word[1], self.choices) if word else None
        super().fail(f'{message} Did you mean "{nearest}"?' if nearest else message, param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes with a unit: 500MB, 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size: `1GB` is 10^9 bytes."""
        if isinstance(value, int):
            return value
        try:
            size = parse_byte_size("the size", value)
        except UsageError:
            size = 0
        if not size:
            self.fail(f"{value!r} is not a size: write 500MB or 2GiB", param, ctx)
        return size


class MixtureParam(click.ParamType[dict[str, Any]]):
    """The weights of sources, as `web=0.7,code=0.3`, or their epochs, as `epochs:web=1,code=2`."""

    name = "weights"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Parse a number for each source."""
        if isinstance(value, dict):
            return value
        words = str(value).removeprefix("epochs:")
        try:
            pairs = [part.rsplit("=", 1) for part in words.split(",")]
            numbers = {name: float(number) for name, number in pairs}
        except ValueError:
            self.fail(f"{value!r} is not a mixture: write web=0.7,code=0.3", param, ctx)
        if len(numbers) < len(pairs):
            self.fail(f"{value!r} names a source twice", param, ctx)
        return numbers if words == value else {"epochs": numbers}


class Names(click.ParamType[list[str]]):
    """A list of names, separated by commas: web,code."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:  # noqa: ARG002
        """Split at the commas."""
        return value if isinstance(value, list) else str(value).split(",")


def field_options(struct: type, *names: str) -> Callable[[F], F]:
    """Add an option for each of these fields of a struct: its name, type, default and help are those of the field.

    The help is the first paragraph of the field's docstring, as one line.
    """
    meanings = read_meanings(struct)
    fields = inspect.signature(struct).parameters
    namespace = {**vars(typing), **vars(collections.abc), **vars(sys.modules[struct.__module__])}

    def add(function: F) -> F:
        for name in reversed(names):
            default, annotation = fields[name].default, fields[name].annotation
            kind = eval(annotation, namespace) if isinstance(annotation, str) else annotation
            meaning = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meanings[name]).replace("`", "")
            settings: dict[str, Any] = {"help": meaning, "default": default}
            if kind is bool:
                settings["is_flag"] = True
            else:
                settings["type"] = _choose_type(kind)
                settings["show_default"] = default is not None
            function = click.option(f"--{name.replace('_', '-')}", **settings)(function)
        return function

    return add


def _choose_type(kind: Any) -> Any:
    """Choose how the words of an option become a value of this type, or None."""
    kinds = [kind for kind in typing.get_args(kind) if kind is not type(None)] if _is_optional(kind) else [kind]
    if typing.get_origin(kinds[0]) is Literal:
        return Choice(typing.get_args(kinds[0]))
    return kinds[0] if kinds[0] in (int, float, str) else Names()


def _is_optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def read_meanings(struct: type) -> dict[str, str]:
    """Return the first paragraph of each field's docstring on one line; empty without one."""
    meanings: dict[str, str] = {}
    for base in struct.__mro__[:-1]:
        if not base.__module__.startswith("gristmill."):
            continue
        [node] = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for field, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                text = str(following.value.value) if is_text else ""  # type: ignore[union-attr]
                meanings.setdefault(field.target.id, " ".join(text.split("\n\n")[0].split()))
    return meanings


def backend_option(default: str, help: str) -> Callable[[F], F]:
    """Add the option `--backend`."""
    return click.option("--backend", type=Choice(BACKENDS), default=default, show_default=True, help=help)


def workers_option(function: F) -> F:
    """Add the option `--workers`."""
    return click.option(
        "--workers", type=click.IntRange(min=1), help="Number of workers. Default: as many as this machine allows."
    )(function)


def ray_option(function: F) -> F:
    """Add the option `--ray-address`."""
    return click.option(
        "--ray-address", metavar="ADDRESS", help="With --backend ray: the cluster, such as auto or HOST:6379."
    )(function)


def recipe_argument(function: F) -> F:
    """Add the argument RECIPE, and `--set` to change it for one run."""
    function = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change the recipe for this run: --set seed=3, --set steps.0.length.min_chars=50. May be repeated.",
    )(function)
    return click.argument("recipe", type=click.Path(allow_dash=True))(function)


def limit_option(function: F) -> F:
    """Add the option `--limit`."""
    return click.option(
        "--limit", type=click.IntRange(min=0), metavar="N", help="Read only the first N records of each source."
    )(function)


def endpoint_option(function: F) -> F:
    """Add the option `--allow-endpoint`."""
    return click.option(
        "--allow-endpoint",
        "allow_endpoints",
        multiple=True,
        metavar="HOST",
        help="Allow storage_options to name this host over plain http. May be repeated.",
    )(function)


def json_option(function: F) -> F:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")(function)


def dataset_argument(function: F) -> F:
    """Add the argument OUT, the folder of a dataset."""
    return click.argument("out", type=click.Path())(function)
