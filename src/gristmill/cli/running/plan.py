"""`gristmill plan`: check everything that can be checked before a run, and estimate what it takes on a cluster.

For that the first records are taken through all steps in this process: the speed of one core.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from gristmill.cli.options import Size, endpoint_option, json_option, limit_option, recipe_argument
from gristmill.cli.printing import echo, format_command, print_json
from gristmill.cli.tables import print_lines, print_wrapped
from gristmill.core.errors import StoppedError, UsageError
from gristmill.core.recipe import Recipe
from gristmill.engine.observer import EventLog
from gristmill.engine.progress import Activity
from gristmill.pipeline.planning.cluster_estimate import (
    PRICES,
    SampleRates,
    estimate_cluster,
    parse_cluster,
    parse_prices,
)
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.run import describe_finished, run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import load_recipe

_RECORDS = 2000


@click.command(epilog="Example: gristmill plan recipe.yaml --set seed=3")
@recipe_argument
@limit_option
@click.option("--cluster", metavar="NODESxCORES", help="Estimate hours, network and storage on such a cluster.")
@click.option("--size", type=Size(), metavar="SIZE", help="With --cluster: the size of the whole input, such as 10TB.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="NAME=PRICE",
    help=f"With --cluster: a price, in any currency: {', '.join(PRICES)}. May be repeated.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print all sources of many, and the notes on engines.")
@endpoint_option
@json_option
def plan_command(
    recipe: str,
    overrides: tuple[str, ...],
    limit: int | None,
    cluster: str | None,
    size: int | None,
    prices: tuple[str, ...],
    allow_endpoints: tuple[str, ...],
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Check RECIPE and print what a run would do. Nothing is written.

    The plan lists the files, compares columns, sends a few real records through the steps and checks the disk space.

    With --cluster the first 2,000 records of each source (or --limit) are run in this process, twice, to a temporary
    folder. Their speed gives the time that a cluster would take. --size is for input that is not here: the files of the
    recipe are then a sample of it.
    """
    if cluster is None and (size is not None or prices):
        raise UsageError("--size and --price are for an estimate", help="add --cluster 64x32: 64 nodes, 32 cores each")
    nodes, cores = parse_cluster(cluster) if cluster is not None else (0, 0)
    parsed_prices = parse_prices(prices)
    loaded = load_recipe(recipe, overrides)
    with Activity() as activity:
        plan = make_plan(
            loaded,
            limit=None if nodes else limit,
            tell=activity.show,
            allowed_endpoints=allow_endpoints,
        )
        outline = plan.outline()
        finished = None if limit is not None else describe_finished(plan)
        estimate = None
        if nodes:
            activity.show("measuring the speed of one core")
            rates = measure_rates(loaded, limit)
            estimate = estimate_cluster(
                outline, nodes, cores, rates, loaded.unit_bytes, size=size, prices=parsed_prices
            )
    if as_json:
        more = {} if estimate is None else {"cluster": asdict(estimate)}
        print_json(json.dumps({**asdict(outline), "fits": outline.fits, "finished": finished, **more}, indent=2))
        return
    print_lines(outline.describe(details=verbose))
    if estimate is not None:
        print_lines(str(estimate))
    if finished is not None:
        is_old = finished != "up to date"
        print_wrapped(
            f"{plan.output} holds a finished dataset{', and ' if is_old else ', which is '}{finished}"
            f"{': --update rebuilds it, and reuses what is still valid' if is_old else ''}"
        )
    echo(f"next: {format_command('run', recipe, overrides, limit)}")


def measure_rates(recipe: Recipe, limit: int | None) -> SampleRates:
    """Measure how fast one core takes the first records through all steps. Nothing of it is kept."""
    seconds, output_bytes = 0.0, 0
    with tempfile.TemporaryDirectory(prefix="gristmill-speed-") as name:
        trial = msgspec.structs.replace(recipe, output=str(Path(name, "out")), max_quarantine=1.0, allow_empty=True)
        try:
            # The first run compiles what is not compiled yet.
            for round_name in ("first", "second"):
                events = EventLog(Path(name, f"{round_name}.jsonl"))
                options = RunOptions(backend="serial", progress=False, overwrite=True, events=events)
                result = run_recipe(trial, options, limit=limit or _RECORDS)
                seconds = result.work_seconds
                output_bytes = sum(shard.bytes for _, _, shard in result.manifest.shards())
        except (StoppedError, UsageError) as error:
            raise UsageError(
                f"the first records do not get through the recipe: {error.message}",
                help="--limit takes more records",
            ) from error
        lines = Path(name, "second.jsonl").read_text().splitlines()
    jobs = [event for event in map(json.loads, lines) if event["event"] == "job_ended"]
    num_bytes = next((job["counts"]["bytes"] for job in jobs if job["counts"].get("bytes")), 0)
    if not (num_bytes and seconds):
        raise UsageError("the recipe reads no records, so its speed is not known")
    return SampleRates(num_bytes / seconds, output_bytes / num_bytes)
