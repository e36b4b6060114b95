"""`gristmill run`: run a recipe and print what happened to every record.

With `--debug` it shows a few records step by step, and the exception of a user's function where it happens.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal

import click
import msgspec

import gristmill
from gristmill.cli.options import (
    Choice,
    backend_option,
    endpoint_option,
    field_options,
    json_option,
    limit_option,
    ray_option,
    recipe_argument,
    workers_option,
)
from gristmill.cli.printing import echo, format_command, print_json, quote_path
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
from gristmill.engine.observer import EventLog
from gristmill.pipeline.debug import FunctionFailedError, run_in_debug_mode
from gristmill.pipeline.planning.outline import group_notes
from gristmill.pipeline.planning.plan import Plan
from gristmill.pipeline.run import RunResult, run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import load_recipe
from gristmill.runtime.process import block_pandas_import
from gristmill.shards.derived_files import REPORT_PAGE
from gristmill.shards.manifest import Manifest

_MONITORS = ("terminal", "web")


class Monitor(Choice):
    """The view of a run: `terminal`, `web`, or `web:8000` with the port."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a word to the view and its port; 0 is any free one."""
        kind, _, port = str(value).partition(":")
        if kind == "web" and port.isdecimal() and int(port) < 1 << 16:
            return kind, int(port)
        return super().convert(value, param, ctx), 0


class MonitorCommand(click.Command):
    """A command whose option `--monitor` needs no value: click would take the recipe after it for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            f"{word}={_MONITORS[0]}" if word == "--monitor" and following.split(":")[0] not in _MONITORS else word
            for word, following in zip(args, [*args[1:], ""], strict=True)
        ]
        return super().parse_args(ctx, words)


@click.command(cls=MonitorCommand, epilog="Example: gristmill run recipe.yaml --workers 4 --limit 1000")
@recipe_argument
@limit_option
@workers_option
@backend_option("auto", "Where tasks run. auto: small jobs in this process, all others in worker processes.")
@ray_option
@field_options(RunOptions, "update", "overwrite", "take_over")
@click.option(
    "--monitor",
    type=Monitor(_MONITORS),
    metavar="[terminal|web|web:PORT]",
    help="Show stages, rate, workers and what slows the run, on the terminal (the default) or in a browser.",
)
@click.option("--events", type=click.Path(dir_okay=False), help="Write a log of events to this file, as JSON lines.")
@click.option("-q", "--quiet", is_flag=True, help="Print only warnings and the result.")
@click.option("-v", "--verbose", is_flag=True, help="Print the plan first, and all counts of the books at the end.")
@click.option("--debug", is_flag=True, help="Run in this process on a few records, and show them after each step.")
@click.option("--pdb", "use_pdb", is_flag=True, help="With --debug: open a debugger where a function raises.")
@endpoint_option
@json_option
def run_command(
    recipe: str,
    overrides: tuple[str, ...],
    limit: int | None,
    workers: int | None,
    events: str | None,
    monitor: tuple[Literal["terminal", "web"], int] | None,
    *,
    quiet: bool,
    verbose: bool,
    debug: bool,
    use_pdb: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run RECIPE and print what happened to every record.

    Re-running the command resumes an interrupted run. The output is the same for any number of workers and any
    number of interruptions. Timeouts, pinning and the place of intermediate data are keys of the recipe: `work` and
    `run`, also for one run: --set run.timeout=60.

    With --debug nothing is written to the output. The first 100 records of each source (or --limit) pass through the
    steps in this process, up to three are shown after each step, and the first exception of a function ends the run
    with its traceback and the record.
    """
    if quiet and monitor is not None:
        raise UsageError("--quiet and --monitor contradict each other")
    if (debug or use_pdb) and monitor is not None:
        raise UsageError("--debug shows records: there is no progress to monitor", help="use only one of them")
    if quiet and verbose:
        raise UsageError("--quiet and --verbose contradict each other")
    if (debug or use_pdb) and (quiet or as_json):
        raise UsageError(
            f"--debug prints records, which {'--quiet' if quiet else '--json'} forbids", help="use only one of them"
        )
    # This process does no algebra: BLAS would start a thread for each core, which takes 50 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if debug or use_pdb:
        run_debug(recipe, overrides, limit=limit, use_pdb=use_pdb)
        return
    started = monotonic()
    view, port = monitor or (False, 0)
    options = RunOptions(
        workers=workers or "auto",
        progress=False if quiet else None,
        monitor=view,
        monitor_port=port,
        events=EventLog(events) if events else None,
        **settings,
    )
    output = Output(started, quiet=quiet, verbose=verbose, as_json=as_json)
    run_and_print(recipe, overrides, options, output, limit=limit)


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
) -> None:
    """Run a recipe, and print what happened to every record."""
    loaded = load_recipe(recipe, overrides)
    if not runs_user_code(step for _, step in loaded.all_steps()):
        block_pandas_import()
    show_plan = partial(_show_plan, quiet=output.quiet, verbose=output.verbose)
    try:
        result = run_recipe(loaded, options, limit=limit, show_plan=show_plan)
    except KeyboardInterrupt:  # SIGTERM too: see `Stopped` in cli.main
        echo("stopped; finished work is kept", err=True)
        backend = None if options.backend == "auto" else options.backend
        places = {"--backend": backend, "--ray-address": options.ray_address}
        command = format_command("run", recipe, overrides, limit, places)
        echo(f"  help: to resume, run the same command: {command}", err=True)
        raise
    seconds = monotonic() - output.started
    if output.as_json:
        print_json(json.dumps(describe_result(result, seconds), indent=2))
    else:
        if not output.quiet:
            print_accounts(result, details=output.verbose)
        print_outcome(result, seconds)


def _show_plan(plan: Plan, *, quiet: bool, verbose: bool) -> None:
    outline = plan.outline()
    if not outline.fits:
        needed, free = format_bytes(outline.needed_bytes), format_bytes(outline.free_bytes)
        print_lines(f"warning: this run may need up to {needed} of disk space, but only {free} are free", err=True)
    if verbose:
        print_lines(outline.describe(details=True), err=True)
    elif not quiet:
        for note in group_notes(outline.sources, details=False):
            print_lines(f"note: {note}", err=True)


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
        "units": {"all": result.reuse.num_units, "reused": result.reuse.num_reused, "change": result.change},
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
    if result.reuse.num_reused or result.change is not None:
        reuse = f"reused {result.reuse.num_reused:,} of {format_count(result.reuse.num_units, 'unit')} of work"
        print_wrapped(f"{reuse}{'' if result.change is None else f': {result.change}'}")
    rows_by_split = ", ".join(f"{split} {rows:,}" for split, rows in _count_rows(manifest).items())
    num_shards = sum(1 for _ in manifest.shards())
    num_bytes = format_bytes(sum(shard.bytes for _, _, shard in manifest.shards()))
    outcome = (
        "up to date: nothing to do"
        if result.was_up_to_date
        else f"done in {seconds:.1f} s; every record is accounted for"
    )
    print_wrapped(f"{outcome}: {rows_by_split}; {format_count(num_shards, 'shard')}, {num_bytes}, in {result.output}")
    if not any(_count_rows(manifest).values()):
        print_wrapped("the dataset is empty: the table shows which step removed the records")
    echo(f"report: {result.output}/{REPORT_PAGE}")
    echo(f"next: gristmill inspect {quote_path(result.output)}")


def run_debug(recipe: str, overrides: Sequence[str], *, limit: int | None, use_pdb: bool) -> None:
    """Run in debug mode. An exception of a user's function ends the command with exit code 1."""
    loaded = load_recipe(recipe, overrides)
    try:
        result = run_in_debug_mode(loaded, partial(print_lines, breaks_words=True), limit=limit)
    except FunctionFailedError as failed:
        frames = _list_user_frames(failed.error.__traceback__)
        if frames is None:
            echo(failed.traceback, err=True, nl=False)
        echo("".join(traceback.format_exception(type(failed.error), failed.error, frames)), err=True, nl=False)
        if use_pdb and frames is not None:
            import pdb  # noqa: PLC0415, T100  (a debugger is rarely asked for)

            pdb.post_mortem(frames)
        elif use_pdb:
            print_lines(
                "--pdb: the function ran in a worker process, because chat templates of models run there; to debug it, "
                "use a recipe without the step render",
                err=True,
            )
        sys.exit(1)
    num_rows = sum(shard.rows for _, _, shard in result.manifest.shards())
    print_lines(f"no exception; {format_count(num_rows, 'row')}")
    echo(f"next: gristmill run {quote_path(recipe)}")


def _list_user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Cut the traceback so that it starts at the user's function; keep all of it if it ends in this package."""
    own_folder = str(Path(gristmill.__file__).parent)
    user_frames = frames
    while user_frames is not None and user_frames.tb_frame.f_code.co_filename.startswith(own_folder):
        user_frames = user_frames.tb_next
    return user_frames or frames
