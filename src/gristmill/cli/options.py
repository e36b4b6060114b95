"""Options that several commands share."""

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from gristmill.core.names import find_nearest
from gristmill.engine.parallel_run import BACKENDS

F = TypeVar("F", bound=Callable[..., Any])


class Choice(click.Choice[str]):
    """One of some words: completed by the shell, and with the nearest one in the error."""

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        given = re.match(r"'([^']*)'", message)
        meant = find_nearest(given[1], self.choices) if given else None
        super().fail(f'{message} Did you mean "{meant}"?' if meant else message, param, ctx)


def backend_option(function: F) -> F:
    """Where tasks run."""
    return click.option(
        "--backend", type=Choice(BACKENDS), default="processes", show_default=True, help="Where the work is done."
    )(function)


def recipe_argument(function: F) -> F:
    """The recipe, and changes to it for this one time."""
    function = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change the recipe for this run: --set seed=3, --set steps.0.length.min_chars=50. May be repeated.",
    )(function)
    return click.argument("recipe", type=click.Path())(function)


def limit_option(function: F) -> F:
    """A quick look."""
    return click.option(
        "--limit", type=click.IntRange(min=0), metavar="N", help="Only the first N records of each source."
    )(function)


def json_option(function: F) -> F:
    """For scripts."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")(function)


def dataset_argument(function: F) -> F:
    """The folder of a dataset."""
    return click.argument("out", type=click.Path())(function)
