"""`gristmill run`: the command and its options.

Workers are started before the run itself is imported (`run_recipe`): their imports take as long as its own.
"""

import os
from time import monotonic
from typing import Literal

import click

from gristmill.cli.options import (
    Choice,
    backend_option,
    endpoint_option,
    json_option,
    limit_option,
    ray_option,
    recipe_argument,
    take_over_option,
)
from gristmill.cli.running.early_workers import start_workers_early
from gristmill.core.errors import UsageError
from gristmill.engine.machine.pinning import PINS, Pin
from gristmill.engine.observing.events import EventLog
from gristmill.runtime.compute_functions import make_compute_functions_on_demand

_MONITORS = ("terminal", "web")


class MonitorCommand(click.Command):
    """A command whose option `--monitor` needs no value: click would take the recipe behind it for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            f"{word}={_MONITORS[0]}" if word == "--monitor" and following not in _MONITORS else word
            for word, following in zip(args, [*args[1:], ""], strict=True)
        ]
        return super().parse_args(ctx, words)


@click.command(cls=MonitorCommand, epilog="Example: gristmill run recipe.yaml --workers 4 --limit 1000")
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
@click.option(
    "--work", metavar="URL", help="Where intermediate data goes, as in the recipe: a folder, or --work s3://bucket/tmp."
)
@click.option("--keep-work", is_flag=True, help="Keep the work folder in the output, and intermediate data.")
@click.option(
    "--monitor",
    type=Choice(_MONITORS),
    help="Show stages, rate, workers and what slows the run, on the terminal (the default) or in a browser (web).",
)
@click.option(
    "--monitor-port",
    type=click.IntRange(min=0, max=65535),
    default=0,
    help="With --monitor web: the port. Default: any free one.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only warnings and the result.")
@click.option("-v", "--verbose", is_flag=True, help="Print the plan first, and all counts of the books at the end.")
@click.option("--debug", is_flag=True, help="Run in this process on a few records, and show them after each step.")
@click.option("--pdb", "use_pdb", is_flag=True, help="With --debug: open a debugger where a function raises.")
@click.option("--events", type=click.Path(dir_okay=False), help="Write a log of events to this file, as JSON lines.")
@ray_option
@click.option(
    "--stall-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="Without progress for this long, say which tasks are running where.",
)
@click.option("--stop-on-stall", is_flag=True, help="Stop the run after --stall-timeout without progress.")
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
    ray_address: str | None,
    monitor: Literal["terminal", "web"] | None,
    monitor_port: int,
    stall_timeout: float,
    work: str | None,
    allow_endpoints: tuple[str, ...],
    *,
    update: bool,
    overwrite: bool,
    keep_work: bool,
    take_over: bool,
    stop_on_stall: bool,
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
    if quiet and monitor is not None:
        raise UsageError("--quiet and --monitor contradict each other")
    if (debug or use_pdb) and monitor is not None:
        raise UsageError("--debug shows records: there is no progress to monitor", help="use only one of them")
    if monitor_port and monitor != "web":
        raise UsageError("--monitor-port is the port of a page", help="add --monitor web")
    if quiet and verbose:
        raise UsageError("--quiet and --verbose contradict each other")
    if (debug or use_pdb) and (quiet or as_json):
        raise UsageError(
            f"--debug prints records, which {'--quiet' if quiet else '--json'} forbids", help="use only one of them"
        )
    # This process does no algebra: BLAS would start a thread for each core, which takes 50 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if debug or use_pdb:
        from gristmill.cli.running.debug import run_debug  # noqa: PLC0415  (imports a debugger)

        run_debug(recipe, overrides, limit=limit, use_pdb=use_pdb)
        return
    started = monotonic()
    with start_workers_early(recipe, overrides, workers=workers, backend=backend, pin=pin) as pool:
        # Imported while the workers start.
        make_compute_functions_on_demand()
        from gristmill.cli.running.run_recipe import Output, run_and_print  # noqa: PLC0415
        from gristmill.pipeline.stages.options import RunOptions  # noqa: PLC0415

        options = RunOptions(
            workers=workers or "auto",
            backend=backend,
            timeout=timeout,
            allow_endpoints=allow_endpoints,
            ray_address=ray_address,
            stall_timeout=stall_timeout,
            stop_on_stall=stop_on_stall,
            pin=pin,
            update=update,
            overwrite=overwrite,
            keep_work=keep_work,
            take_over=take_over,
            progress=False if quiet else None,
            monitor=monitor or False,
            monitor_port=monitor_port,
            events=EventLog(events) if events else None,
        )
        output = Output(started, quiet=quiet, verbose=verbose, as_json=as_json)
        run_and_print(recipe, overrides, options, output, limit=limit, work=work, pool=pool)
