"""`gristmill plan`: check everything that can be checked before a run."""

import json
from dataclasses import asdict

import click

from gristmill.cli.options import endpoint_option, json_option, limit_option, recipe_argument
from gristmill.cli.printing import again
from gristmill.cli.tables import print_lines
from gristmill.engine.observing.progress import Activity
from gristmill.pipeline.planning.cluster_estimate import estimate_cluster, parse_cluster
from gristmill.pipeline.planning.plan import make_plan
from gristmill.recipe.load import load_recipe


@click.command(epilog="Example: gristmill plan recipe.yaml --set seed=3")
@recipe_argument
@limit_option
@click.option("--cluster", metavar="NODESxCORES", help="Estimate hours, requests and storage on such a cluster.")
@endpoint_option
@json_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    limit: int | None,
    cluster: str | None,
    allow_endpoints: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Check RECIPE and print what a run would do. Nothing is written.

    The plan lists the files, compares columns, sends a few real records through the steps and checks the disk space.

    With --cluster the first 2,000 records of each source (or --limit) are run in this process, twice, to a temporary
    folder. Their speed gives the time that a cluster would take.
    """
    nodes, cores = parse_cluster(cluster) if cluster is not None else (0, 0)
    loaded = load_recipe(recipe, overrides)
    with Activity() as activity:
        plan = make_plan(
            loaded,
            limit=None if nodes else limit,
            tell=activity.show,
            allowed_endpoints=allow_endpoints,
        )
        outline = plan.outline()
        estimate = None
        if nodes:
            from gristmill.cli.running.measured_speed import measure_speed  # noqa: PLC0415  (imports what a run needs)

            activity.show("measuring the speed of one core")
            estimate = estimate_cluster(outline, nodes, cores, measure_speed(loaded, limit), loaded.unit_bytes)
    if as_json:
        more = {} if estimate is None else {"cluster": asdict(estimate)}
        click.echo(json.dumps({**asdict(outline), "fits": outline.fits, **more}, indent=2))
        return
    print_lines(str(outline))
    if estimate is not None:
        print_lines(str(estimate))
    click.echo(f"next: {again('run', recipe, overrides, limit)}")
