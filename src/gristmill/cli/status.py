"""`gristmill status`: what a run is doing, read from its work folder."""

import time

import click
import msgspec

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.tables import print_wrapped
from gristmill.core.quantities import format_count
from gristmill.pipeline.stages.run_status import RunStatus, read_status
from gristmill.pipeline.work_folder import find_intermediate_folder
from gristmill.storage.locations import parse_location

_SILENT_SECONDS = 60.0
"""A run that has written nothing for this long has probably ended."""


@click.command(epilog="Example: gristmill status out")
@dataset_argument
@json_option
def command(out: str, *, as_json: bool) -> None:
    """Show what the run that writes OUT is doing: its stage, its progress, and the tasks that take longest.

    Reads only the work folder, so it can be asked from any machine that sees OUT, and disturbs nothing. A run writes
    its status every five seconds.
    """
    output = parse_location(out)
    status, work = read_status(output), find_intermediate_folder(output)
    if as_json:
        described = {"status": status, "work": None if work is None else str(work)}
        click.echo(msgspec.json.format(msgspec.json.encode(described)).decode())
    elif status is None:
        click.echo(f"{out}: finished; no run is working there")
        click.echo(f"next: gristmill inspect {out}")
    else:
        _print_status(out, status)
    if work is not None and not as_json:
        print_wrapped(f"  intermediate data: {work}")


def _print_status(out: str, status: RunStatus) -> None:
    seconds = max(0.0, time.time() - status.written)
    print_wrapped(f"{out}: {status.job}, as of {seconds:,.0f} s ago (run {status.run} on {status.host}, {status.pid})")
    if seconds > _SILENT_SECONDS:
        print_wrapped("  the run has probably ended: the same command resumes it")
    total = "" if status.total is None else f" of {status.total:,}"
    counts = ", ".join(f"{amount:,} {name}" for name, amount in status.counts.items())
    print_wrapped(f"  {status.done:,}{total} tasks done{f' ({counts})' if counts else ''}, {status.failed:,} failed")
    lost = f", {status.deaths:,} died" if status.deaths else ""
    print_wrapped(f"  {format_count(status.workers, 'worker')} ({status.backend}), {status.busy:,} busy{lost}")
    if status.seconds_without_progress > _SILENT_SECONDS:
        print_wrapped(f"  no progress for {status.seconds_without_progress:,.0f} s")
    for task in status.slowest:
        node = f", node {task.node[:8]}" if task.node else ""
        print_wrapped(f"  {task.seconds:,.0f} s: {task.task} on {task.worker}{node}")
