"""`gristmill plan`: check everything that can be checked before a run."""

import json
from dataclasses import asdict

import click

from gristmill.cli.options import endpoint_option, json_option, limit_option, recipe_argument
from gristmill.cli.printing import again
from gristmill.cli.tables import print_lines
from gristmill.engine.progress import Activity
from gristmill.pipeline.planning.plan import make_plan
from gristmill.recipe.load import load_recipe


@click.command(epilog="Example: gristmill plan recipe.yaml --set seed=3")
@recipe_argument
@limit_option
@endpoint_option
@json_option
def command(
    recipe: str, overrides: tuple[str, ...], limit: int | None, allow_endpoints: tuple[str, ...], *, as_json: bool
) -> None:
    """Check RECIPE and print what a run would do. Nothing is written.

    The plan lists the files, compares columns, sends a few real records through the steps and checks the disk space.
    """
    with Activity() as activity:
        plan = make_plan(
            load_recipe(recipe, overrides), limit=limit, tell=activity.show, allowed_endpoints=allow_endpoints
        )
        outline = plan.outline()
    if as_json:
        click.echo(json.dumps({**asdict(outline), "fits": outline.fits}, indent=2))
        return
    print_lines(str(outline))
    click.echo(f"next: {again('run', recipe, overrides, limit)}")
