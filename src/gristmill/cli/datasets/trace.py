"""`gristmill trace`: find the input of a record."""

import json
import re
from dataclasses import asdict

import click

from gristmill.cli.datasets.removed_pair import print_pair
from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.printing import to_one_line
from gristmill.cli.tables import print_lines
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.duplicate_lookup import RemovedDocument, read_removed_document
from gristmill.pipeline.inspecting.trace import TracedOrigin, trace, trace_input
from gristmill.shards.dataset import open_dataset
from gristmill.storage.stores.options import name_bucket


@click.command(epilog="Example: gristmill trace out 17", context_settings={"ignore_unknown_options": True})
@dataset_argument
@click.argument("number", metavar="NUMBER|ORIGIN")
@click.option("--split", help="Number the records of this split only.")
@click.option("--removed", is_flag=True, help="Number the documents that deduplicate removed instead.")
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="URL",
    help="Read inputs in this bucket with your credentials: --bucket s3://corpus. May be repeated.",
)
@json_option
def command(
    out: str, number: str, split: str | None, buckets: tuple[str, ...], *, removed: bool, as_json: bool
) -> None:
    """Trace record NUMBER of the dataset in OUT back to its input file, and read it there again.

    Records are numbered from 0 in the order of the dataset; -1 is the last one. ORIGIN is SOURCE:FILE@POSITION, as in
    the files in dropped/: the record at that position of the input is read. With --removed, NUMBER is a row of
    dropped/duplicates.parquet: the removed document is shown beside the one kept in its place.
    """
    for bucket in buckets:
        name_bucket(bucket)
    dataset = open_dataset(out)
    if not re.fullmatch(r"-?\d+", number):
        if removed or split is not None:
            raise UsageError(f"--{'removed' if removed else 'split'} takes the number of a record, not {number!r}")
        _show_place(trace_input(dataset, number), as_json=as_json)
        return
    if removed:
        _show_removed(read_removed_document(dataset, int(number)), as_json=as_json)
        return
    traced = trace(dataset.split(split) if split is not None else dataset, int(number))
    if as_json:
        click.echo(json.dumps(asdict(traced), indent=2, default=str))
        return
    click.echo(f"record {number}")
    for name, value in traced.record.items():
        print_lines(f"  {to_one_line(name)}: {to_one_line(value)}", breaks_words=True)
    for place in traced.places:
        _print_place(place)


def _show_place(origin: TracedOrigin, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(origin), indent=2, default=str))
        return
    _print_place(origin)


def _show_removed(document: RemovedDocument, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(document), indent=2, default=str))
        return
    print_pair(document)


def _print_place(place: TracedOrigin) -> None:
    origin = place.origin
    click.echo(f"from source {origin.source}")
    part = f", part {origin.part}" if origin.part else ""
    click.echo(f"  {origin.path}, {place.position_kind} {origin.position:,}{part}")
    if place.state != "unchanged":
        change = "is missing" if place.state == "missing" else "has changed"
        click.echo(f"  the input file {change}, so the record cannot be read from it")
    elif place.original is None:
        click.echo("  there is no record at this position")
    else:
        print_lines(f"was read as\n  {to_one_line(place.original, max_chars=2000)}", breaks_words=True)
