"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


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
