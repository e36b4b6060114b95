"""What is known of a run from outside: `gristmill status` and `gristmill clean`.

`status` shows what a run is doing, read from its work folder, or replays one from its log of events. `clean` removes
what an interrupted run left behind.
"""

import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from gristmill.cli.options import dataset_argument, field_options, json_option
from gristmill.cli.printing import echo, print_json, quote_path
from gristmill.cli.tables import print_lines, print_wrapped
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count, format_duration
from gristmill.pipeline.monitoring.run_status import RunStatus, read_replay, read_status
from gristmill.pipeline.monitoring.views import TerminalView, render_status, summarize_status, to_text
from gristmill.pipeline.publishing.clean import clean
from gristmill.pipeline.publishing.failed_run import load_failed_run
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.work_folder import find_intermediate_folder
from gristmill.report.model import RunFailure
from gristmill.shards.derived_files import REPORT_PAGE
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import Location, parse_location
from gristmill.storage.stores.credentials import name_bucket

_SILENT_SECONDS = 60.0
"""A run that has written nothing for this long has probably ended."""
_MAX_WAIT_SECONDS = 60.0
_FOLLOW_SECONDS = 1.0
_MAX_LISTED = 10


@click.command(epilog="Example: gristmill status out --follow")
@dataset_argument
@click.option("--follow", is_flag=True, help="Show the run until it has ended.")
@click.option("--replay", is_flag=True, help="OUT is a log that --events wrote: show the run again.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="With --replay: how many times as fast as the run.",
)
@json_option
def status_command(out: str, speed: float, *, follow: bool, replay: bool, as_json: bool) -> None:
    """Show what the run that writes OUT is doing: stage, progress, rate, workers, and what slows it.

    Reads only the work folder, so it can be asked from any machine that sees OUT, and disturbs nothing. A run writes
    its status every five seconds. OUT may also be the log of events of a run: then its last state is shown, or with
    --replay the whole run again.
    """
    if sum((follow, replay, as_json)) > 1:
        raise UsageError("--follow, --replay and --json exclude each other", help="use only one of them")
    log = Path(out)
    location = work = None
    if log.is_file():
        last = deque(read_replay(log), maxlen=1)
        status = last[0] if last else None
        if status is None:
            raise UsageError(f"{out} holds no events of a run", help="name the file that --events wrote")
        if replay:
            _show_in_time(out, _wait_between(read_replay(log), speed))
            return
    elif replay:
        raise UsageError(
            f"{out} is not a log of events", help="run with --events FILE, then: gristmill status FILE --replay"
        )
    else:
        location = parse_location(out)
        if follow:
            _show_in_time(out, _poll(location))
        work = find_intermediate_folder(location)
        failed = load_failed_run(location)
        if failed is not None and not as_json:
            _print_failure(out, failed.failure)
            return
        status = read_status(location)
    if as_json:
        described = {"status": status, "work": None if work is None else str(work)}
        print_json(msgspec.json.format(msgspec.json.encode(described)).decode())
    elif status is None:
        echo(f"{out}: finished; no run is working there")
        echo(f"next: gristmill inspect {quote_path(out)}")
    else:
        _print_status(out, status, location)
    if work is not None and not as_json:
        print_wrapped(f"  intermediate data: {work}")


def _print_failure(out: str, failure: RunFailure) -> None:
    """Print how the last run has ended: it left no dataset, and its status would be that of a moment before."""
    print_wrapped(f"{out}: the run {failure.describe()}")
    print_wrapped(f"  ended {failure.ended}; the same command resumes it")
    echo(f"  report: {out}/{REPORT_PAGE}")
    echo(f"next: gristmill view {quote_path(out)}")


def _print_status(out: str, status: RunStatus, location: Location | None) -> None:
    """Print a status, and what is known of its run: that of a log (None) has ended."""
    seconds = max(0.0, time.time() - status.written)
    age = f"{format_duration(seconds)} ago"
    if location is not None and _is_dead(location, status):
        print_wrapped(
            f"{out}: stopped, process {status.pid} is gone; the same command resumes it. Its last state, {age}:"
        )
    elif location is not None and seconds > _SILENT_SECONDS:
        print_wrapped(f"{out}: probably stopped; the same command resumes it. Its last state, {age}:")
    elif location is not None:
        print_wrapped(f"{out}: running, as of {age}")
    print_lines("\n".join(to_text(render_status(status, out))))


def _is_dead(location: Location, status: RunStatus) -> bool:
    """Whether a run of this machine has ended without a word. Its process may be hidden here, but never its lock."""
    lock = open_folder(location).lock()
    if lock is None or status.host != socket.gethostname():
        return False
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return not lock.is_held()
    except PermissionError:
        pass
    return False


def _show_in_time(title: str, statuses: Iterator[RunStatus]) -> None:
    """Show each status when it comes: live on a terminal, else a line for each."""
    view = TerminalView(title) if sys.stderr.isatty() else None
    try:
        for status in statuses:
            if view is None:
                echo(summarize_status(status))
            else:
                view.show(status)
    finally:
        if view is not None:
            view.close()


def _poll(location: Location) -> Iterator[RunStatus]:
    """Yield the status whenever it was written again, until the run has ended or says nothing more."""
    written = 0.0
    while (status := read_status(location)) is not None and time.time() - status.written < _SILENT_SECONDS:
        if status.written != written:
            written = status.written
            yield status
        if _is_dead(location, status):
            return
        time.sleep(_FOLLOW_SECONDS)


def _wait_between(statuses: Iterator[RunStatus], speed: float) -> Iterator[RunStatus]:
    """Yield statuses as far apart as they were, divided by `speed`. A clock may have been set while the run was on."""
    began, first = time.monotonic(), None
    for status in statuses:
        first = status.written if first is None else first
        time.sleep(min(max(0.0, began + (status.written - first) / speed - time.monotonic()), _MAX_WAIT_SECONDS))
        yield status


@click.command(epilog="Example: gristmill clean out")
@dataset_argument
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="URL",
    help="Remove intermediate data of the run in this bucket, too: --bucket s3://scratch. May be repeated.",
)
@field_options(RunOptions, "take_over")
@json_option
def clean_command(out: str, buckets: tuple[str, ...], *, take_over: bool, as_json: bool) -> None:
    """Remove the work folder and temporary files that an interrupted run left in OUT.

    The run cannot be resumed after this. Files of a finished dataset are never removed, and nothing is done while a
    run works in OUT.
    """
    for bucket in buckets:
        name_bucket(bucket)
    removed = clean(parse_location(out), take_over=take_over)
    if as_json:
        print_json(json.dumps(asdict(removed), indent=2))
        return
    for path in removed.files[:_MAX_LISTED]:
        echo(f"removed {path}")
    if len(removed.files) > _MAX_LISTED:
        echo(f"removed {len(removed.files) - _MAX_LISTED:,} others")
    note = "; the finished dataset is unchanged" if removed.is_dataset else ""
    echo(f"{format_count(len(removed.files), 'file')}, {format_bytes(removed.num_bytes)} removed from {out}{note}")
