"""`gristmill run`: run a recipe and print the books."""

import json
from functools import partial
from time import monotonic

import click
import msgspec

from gristmill.cli.options import (
    Choice,
    backend_option,
    endpoint_option,
    json_option,
    limit_option,
    recipe_argument,
    take_over_option,
)
from gristmill.cli.printing import again
from gristmill.cli.tables import (
    print_books,
    print_contamination,
    print_duplicates,
    print_lines,
    print_tokens,
    print_wrapped,
)
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.recipe import runs_user_code
from gristmill.engine.events import EventLog
from gristmill.engine.pinning import PINS, Pin
from gristmill.pipeline.planning.plan import Plan
from gristmill.pipeline.run import RunResult, run_recipe
from gristmill.pipeline.stages.options import RunOptions
from gristmill.recipe.load import load_recipe
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.shards.manifest import Manifest


@click.command(epilog="Example: gristmill run recipe.yaml --workers 4 --limit 1000")
@recipe_argument
@limit_option
@click.option(
    "--workers", type=click.IntRange(min=1), help="Number of workers. Default: as many as this machine allows."
)
@backend_option("auto", "Where tasks run. auto: small jobs in this process, all others in worker processes.")
@click.option(
    "--pin",
    type=Choice(PINS),
    default="none",
    show_default=True,
    help="Bind each worker to one CPU (cores), or to the CPUs and memory of one NUMA node (numa): --pin numa.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Longest time for about 4 MiB of input.")
@click.option("--update", is_flag=True, help="Rebuild a changed dataset, reusing shards that are still valid.")
@click.option("--overwrite", is_flag=True, help="Rebuild the dataset from scratch.")
@click.option("--keep-work", is_flag=True, help="Keep the work folder in the output.")
@click.option("--monitor", is_flag=True, help="Show CPU and memory of each worker.")
@click.option("-q", "--quiet", is_flag=True, help="Print only warnings and the result.")
@click.option("-v", "--verbose", is_flag=True, help="Print the plan first, and all counts of the books at the end.")
@click.option("--debug", is_flag=True, help="Run in this process on a few records, and show them after each step.")
@click.option("--pdb", "use_pdb", is_flag=True, help="With --debug: open a debugger where a function raises.")
@click.option("--events", type=click.Path(dir_okay=False), help="Write a log of events to this file, as JSON lines.")
@take_over_option
@endpoint_option
@json_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    limit: int | None,
    workers: int | None,
    backend: str,
    pin: Pin,
    timeout: float | None,
    events: str | None,
    allow_endpoints: tuple[str, ...],
    *,
    update: bool,
    overwrite: bool,
    keep_work: bool,
    take_over: bool,
    monitor: bool,
    quiet: bool,
    verbose: bool,
    debug: bool,
    use_pdb: bool,
    as_json: bool,
) -> None:
    """Run RECIPE and print what happened to every record.

    Re-running the command resumes an interrupted run. The output is the same for any number of workers and any
    number of interruptions.

    With --debug nothing is written to the output. The first 100 records of each source (or --limit) pass through the
    steps in this process, up to three are shown after each step, and the first exception of a function ends the run
    with its traceback and the record.
    """
    if quiet and verbose:
        raise UsageError("--quiet and --verbose contradict each other")
    if (debug or use_pdb) and (quiet or as_json):
        raise UsageError(
            f"--debug prints records, which {'--quiet' if quiet else '--json'} forbids", help="use only one of them"
        )
    if debug or use_pdb:
        from gristmill.cli.debug import run_debug  # noqa: PLC0415  (imports a debugger)

        run_debug(load_recipe(recipe, overrides), limit=limit, use_pdb=use_pdb)
        return
    started = monotonic()
    options = RunOptions(
        workers=workers or "auto",
        backend=backend,
        timeout=timeout,
        allow_endpoints=allow_endpoints,
        pin=pin,
        update=update,
        overwrite=overwrite,
        keep_work=keep_work,
        take_over=take_over,
        progress=False if quiet else None,
        monitor=monitor,
        events=EventLog(events) if events else None,
    )
    loaded = load_recipe(recipe, overrides)
    if not runs_user_code(step for _, step in loaded.all_steps()):
        block_pandas_import()
    try:
        result = run_recipe(loaded, options, limit=limit, show_plan=partial(_show_plan, quiet=quiet, verbose=verbose))
    except (KeyboardInterrupt, SystemExit):  # SIGTERM is a SystemExit: see cli.main
        click.echo("stopped; finished work is kept", err=True)
        click.echo(f"  help: to resume, run the same command: {again('run', recipe, overrides, limit)}", err=True)
        raise
    if as_json:
        click.echo(json.dumps(describe_result(result, monotonic() - started), indent=2))
    else:
        if not quiet:
            print_accounts(result, details=verbose)
        print_outcome(result, monotonic() - started)


def _show_plan(plan: Plan, *, quiet: bool, verbose: bool) -> None:
    _warn_of_space(plan)
    if verbose:
        print_lines(str(plan), err=True)
    elif not quiet:
        for note in dict.fromkeys(note for source in plan.sources for note in source.notes):
            print_lines(f"note: {note}", err=True)


def _warn_of_space(plan: Plan) -> None:
    outline = plan.outline()
    if not outline.fits:
        needed, free = format_bytes(outline.needed_bytes), format_bytes(outline.free_bytes)
        print_lines(f"warning: this run may need up to {needed} of disk space, but only {free} are free", err=True)


def _count_rows(manifest: Manifest) -> dict[str, int]:
    rows = dict.fromkeys(manifest.splits, 0)
    for split, _, shard in manifest.shards():
        rows[split] += shard.rows
    return rows


def describe_result(result: RunResult, seconds: float) -> dict[str, object]:
    """Return the result of a run as plain values, for `--json`."""
    manifest = result.manifest
    return {
        "output": str(result.output),
        "up_to_date": result.was_up_to_date,
        "seconds": round(seconds, 3),
        "dataset_hash": manifest.dataset_hash,
        "environment_dependent": manifest.environment_dependent,
        "rows": _count_rows(manifest),
        "num_shards": sum(1 for _ in manifest.shards()),
        "num_bytes": sum(shard.bytes for _, _, shard in manifest.shards()),
        "books": msgspec.to_builtins(result.books),
        "warnings": list(result.warnings),
        "deduplicated": [msgspec.to_builtins(step) for step in manifest.deduplicated],
        "decontaminated": [msgspec.to_builtins(step) for step in manifest.decontaminated],
        "quarantine": {
            "counts": manifest.quarantine.counts,
            "files": [file.path for file in manifest.quarantine.files],
        },
    }


def print_accounts(result: RunResult, *, details: bool = False) -> None:
    """Print what happened to every record."""
    manifest = result.manifest
    print_books(result.books, details=details, more=f"gristmill inspect {result.output} --details")
    print_tokens(manifest)
    print_duplicates(manifest)
    print_contamination(manifest)
    for source, counts in manifest.quarantine.counts.items():
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        print_wrapped(f"quarantined from {source}: {reasons}")
    for file in manifest.quarantine.files:
        print_wrapped(f"  see {result.output / file.path}, or: gristmill inspect {result.output} --quarantine")


def print_outcome(result: RunResult, seconds: float) -> None:
    """Print the warnings and the size of the dataset."""
    manifest = result.manifest
    for warning in result.warnings:
        print_wrapped(f"warning: {warning}")
    if manifest.environment_dependent:
        print_wrapped(
            "note: some records were quarantined because of limits of this machine; another run may keep them"
        )
    rows_by_split = ", ".join(f"{split} {rows:,}" for split, rows in _count_rows(manifest).items())
    num_shards = sum(1 for _ in manifest.shards())
    num_bytes = format_bytes(sum(shard.bytes for _, _, shard in manifest.shards()))
    outcome = "up to date: nothing to do" if result.was_up_to_date else f"done in {seconds:.1f} s; the books balance"
    print_wrapped(f"{outcome}: {rows_by_split}; {format_count(num_shards, 'shard')}, {num_bytes}, in {result.output}")
    if not any(_count_rows(manifest).values()):
        print_wrapped("the dataset is empty: the table shows which step removed the records")
    click.echo(f"next: gristmill inspect {result.output}")
