"""What `gristmill run` does: run a recipe and print the books."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

import click
import msgspec

from gristmill.cli.printing import again, quote_path
from gristmill.cli.tables import (
    print_books,
    print_contamination,
    print_duplicates,
    print_lines,
    print_tokens,
    print_wrapped,
)
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.recipe import runs_user_code
from gristmill.engine.pool.worker_pool import WorkerPool
from gristmill.pipeline.planning.plan import Plan
from gristmill.pipeline.run import RunResult, run_recipe
from gristmill.pipeline.stages.options import RunOptions
from gristmill.recipe.load import load_recipe
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.shards.manifests.manifest import Manifest
from gristmill.shards.report import REPORT_PAGE
from gristmill.storage.locations import parse_location


@dataclass(frozen=True)
class Output:
    """The form in which a run is printed, and how much of it."""

    started: float
    """When the command began."""
    quiet: bool
    verbose: bool
    as_json: bool


def run_and_print(
    recipe: str,
    overrides: Sequence[str],
    options: RunOptions,
    output: Output,
    *,
    limit: int | None,
    work: str | None,
    pool: WorkerPool,
) -> None:
    """Run a recipe in a pool that may have workers already, and print what happened to every record."""
    loaded = load_recipe(recipe, overrides)
    if work is not None:  # relative to the current folder, as all paths of a command are
        loaded = msgspec.structs.replace(loaded, work=work and str(parse_location(work).absolute()))
    if not runs_user_code(step for _, step in loaded.all_steps()):
        block_pandas_import()
    show_plan = partial(_show_plan, quiet=output.quiet, verbose=output.verbose)
    try:
        result = run_recipe(loaded, options, limit=limit, show_plan=show_plan, started_pool=pool)
    except (KeyboardInterrupt, SystemExit):  # SIGTERM is a SystemExit: see cli.main
        click.echo("stopped; finished work is kept", err=True)
        backend = None if options.backend == "auto" else options.backend
        places = {"--backend": backend, "--ray-address": options.ray_address, "--work": work}
        command = again("run", recipe, overrides, limit, places)
        click.echo(f"  help: to resume, run the same command: {command}", err=True)
        raise
    seconds = monotonic() - output.started
    if output.as_json:
        click.echo(json.dumps(describe_result(result, seconds), indent=2))
    else:
        if not output.quiet:
            print_accounts(result, details=output.verbose)
        print_outcome(result, seconds)


def _show_plan(plan: Plan, *, quiet: bool, verbose: bool) -> None:
    _warn_of_space(plan)
    if verbose:
        print_lines(str(plan), err=True)
    elif not quiet:
        for note in dict.fromkeys(note for source in plan.sources for note in source.notes):
            names = [source.name for source in plan.sources if note in source.notes]
            where = "" if len(names) == len(plan.sources) else f"{', '.join(names)}: "
            print_lines(f"note: {where}{note}", err=True)


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
        "store_use": None if result.store_use is None else result.store_use._asdict(),
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
    print_books(result.books, details=details, more=f"gristmill inspect {quote_path(result.output)} --details")
    print_tokens(manifest)
    print_duplicates(manifest)
    print_contamination(manifest)


def _print_quarantine(result: RunResult) -> None:
    quarantine = result.manifest.quarantine
    for source, counts in quarantine.counts.items():
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        print_wrapped(f"quarantined from {source}: {reasons}")
    command = f"gristmill inspect {quote_path(result.output)} --quarantine"
    for file in quarantine.files:
        print_wrapped(f"  see {result.output / file.path}, or: {command}")


def print_outcome(result: RunResult, seconds: float) -> None:
    """Print what was quarantined, the warnings and the size of the dataset."""
    manifest = result.manifest
    _print_quarantine(result)
    for warning in result.warnings:
        print_wrapped(f"warning: {warning}")
    if manifest.environment_dependent:
        print_wrapped(
            "note: some records were quarantined because of limits of this machine; another run may keep them"
        )
    if (use := result.store_use) is not None:
        reads = f"{format_count(use.reads, 'read')} of {format_bytes(use.mean_read_bytes)} on average"
        if use.intermediate_reads:
            mean = format_bytes(use.mean_intermediate_bytes)
            reads += f", {use.intermediate_reads:,} of them of intermediate data, of {mean}"
        print_wrapped(f"stores: {reads}; tasks waited {use.wait_share:.0%} of their time")
    rows_by_split = ", ".join(f"{split} {rows:,}" for split, rows in _count_rows(manifest).items())
    num_shards = sum(1 for _ in manifest.shards())
    num_bytes = format_bytes(sum(shard.bytes for _, _, shard in manifest.shards()))
    outcome = "up to date: nothing to do" if result.was_up_to_date else f"done in {seconds:.1f} s; the books balance"
    print_wrapped(f"{outcome}: {rows_by_split}; {format_count(num_shards, 'shard')}, {num_bytes}, in {result.output}")
    if not any(_count_rows(manifest).values()):
        print_wrapped("the dataset is empty: the table shows which step removed the records")
    click.echo(f"report: {result.output}/{REPORT_PAGE}")
    click.echo(f"next: gristmill inspect {quote_path(result.output)}")
