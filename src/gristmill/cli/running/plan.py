"""`gristmill plan`: check everything that can be checked before a run, and estimate what it takes on a cluster.

For that the first records are taken through all steps in this process: the speed of one core.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from gristmill.cli.options import endpoint_option, json_option, limit_option, recipe_argument
from gristmill.cli.printing import echo, format_command, print_json
from gristmill.cli.tables import print_lines
from gristmill.core.errors import StoppedError, UsageError
from gristmill.core.recipe import Recipe
from gristmill.engine.observer import EventLog
from gristmill.engine.progress import Activity
from gristmill.pipeline.planning.outline import estimate_cluster, parse_cluster
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import load_recipe

_RECORDS = 2000


@click.command(epilog="Example: gristmill plan recipe.yaml --set seed=3")
@recipe_argument
@limit_option
@click.option("--cluster", metavar="NODESxCORES", help="Estimate hours, requests and storage on such a cluster.")
@endpoint_option
@json_option
def plan_command(
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
            activity.show("measuring the speed of one core")
            estimate = estimate_cluster(outline, nodes, cores, measure_speed(loaded, limit), loaded.unit_bytes)
    if as_json:
        more = {} if estimate is None else {"cluster": asdict(estimate)}
        print_json(json.dumps({**asdict(outline), "fits": outline.fits, **more}, indent=2))
        return
    print_lines(str(outline))
    if estimate is not None:
        print_lines(str(estimate))
    echo(f"next: {format_command('run', recipe, overrides, limit)}")


def measure_speed(recipe: Recipe, limit: int | None) -> float:
    """Return the bytes of input that one core takes through all steps in a second. Nothing of it is kept."""
    seconds = 0.0
    with tempfile.TemporaryDirectory(prefix="gristmill-speed-") as name:
        trial = msgspec.structs.replace(recipe, output=str(Path(name, "out")), max_quarantine=1.0, allow_empty=True)
        try:
            # The first run compiles what is not compiled yet.
            for round_name in ("first", "second"):
                events = EventLog(Path(name, f"{round_name}.jsonl"))
                options = RunOptions(backend="serial", progress=False, overwrite=True, events=events)
                seconds = run_recipe(trial, options, limit=limit or _RECORDS).work_seconds
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
    return float(num_bytes / seconds)
