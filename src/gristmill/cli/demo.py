"""`gristmill demo`: the engine at work on files that every machine has."""

import json
from dataclasses import asdict

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gristmill.pipeline.demo import Demo, run_demo
from gristmill.pipeline.demo_stream import Streamed, stream_demo
from gristmill.text.counts import Counts

TABLE_ROWS = 12


@click.command(epilog="Example: gristmill demo --workers 2")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Worker processes. Default: as many as this machine allows."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def command(workers: int | None, *, as_json: bool) -> None:
    """Count lines, words and bytes of Python's own library, one file an item, on all cores.

    One worker kills itself in the middle of the job. Its file is given to another, and at the end
    the sum is checked against the file system: nothing is lost, nothing is counted twice.
    A few of the files are then packed into rows of tokens and streamed as training batches.
    """
    demo = run_demo(workers=workers or "auto", progress=False if as_json else None)
    if as_json:
        click.echo(json.dumps({**_as_dict(demo), "streamed": asdict(stream_demo())}, indent=2))
    else:
        _print(demo)
        _print_streamed(stream_demo())


def _as_dict(demo: Demo) -> dict[str, object]:
    return {
        "folder": str(demo.folder),
        "seconds": round(demo.seconds, 3),
        "killed_worker": {"pid": demo.killed_pid, "file": str(demo.killed_at)},
        "total": asdict(demo.total),
        "packages": {name: asdict(counts) for name, counts in demo.packages.items()},
    }


def _print(demo: Demo) -> None:
    table = Table(box=SIMPLE)
    table.add_column("package")
    for column in ("files", "lines", "words", "bytes"):
        table.add_column(column, justify="right")

    entries = list(demo.packages.items())
    for name, counts in entries[:TABLE_ROWS]:
        _add(table, name, counts)
    rest = entries[TABLE_ROWS:]
    if rest:
        _add(table, f"{len(rest)} others", sum((counts for _, counts in rest), Counts()))
    table.add_section()
    _add(table, "total", demo.total, style="bold")

    Console().print(table)
    rate = demo.total.bytes / 1e6 / demo.seconds
    click.echo(f"{demo.total.files:,} files in {demo.seconds:.2f} s, {rate:.0f} MB/s, start of the workers included.")
    click.echo(f"Worker {demo.killed_pid} was killed (SIGKILL) while it read {demo.killed_at}; another read it again.")
    click.echo("Nothing was lost: files and bytes agree with the file system's own account.")


def _print_streamed(streamed: Streamed) -> None:
    size = " x ".join(map(str, streamed.shape))
    click.echo(f"\nPython's json package as {streamed.num_rows} rows of tokens, streamed in batches of {size}:")
    for step, files in enumerate(streamed.steps):
        click.echo(f"  step {step}: {', '.join(files)}")
    click.echo("Stopped after step 0 and resumed with another batch size: every row once, in the same order.")
    click.echo(streamed.accounts)


def _add(table: Table, name: str, counts: Counts, style: str | None = None) -> None:
    numbers = (counts.files, counts.lines, counts.words, counts.bytes)
    table.add_row(name, *(f"{number:,}" for number in numbers), style=style)
