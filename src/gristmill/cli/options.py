"""Options that several commands share."""

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

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


class Duration(click.ParamType[float]):
    """A time with a unit: 90s, 15m, 1h. Without a unit it is in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a time: `15m` is 900 seconds."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a time: write 90s, 15m or 1h", param, ctx)
        return float(match[1]) * {"m": 60, "h": 3600}.get(match[2], 1)


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


def take_over_option(function: F) -> F:
    """Add the option `--take-over`."""
    return click.option(
        "--take-over", is_flag=True, help="Do not wait for a run on another machine that may still use a shared output."
    )(function)


def json_option(function: F) -> F:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")(function)


def dataset_argument(function: F) -> F:
    """Add the argument OUT, the folder of a dataset."""
    return click.argument("out", type=click.Path())(function)
