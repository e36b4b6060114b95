"""`gristmill clean`: remove what an interrupted run left behind."""

import json
from dataclasses import asdict

import click

from gristmill.cli.options import dataset_argument, json_option, take_over_option
from gristmill.core.quantities import format_bytes, format_count
from gristmill.pipeline.publishing.clean import clean
from gristmill.storage.locations import parse_location
from gristmill.storage.stores.options import name_bucket

_MAX_LISTED = 10


@click.command(epilog="Example: gristmill clean out")
@dataset_argument
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="URL",
    help="Remove intermediate data of the run in this bucket, too: --bucket s3://scratch. May be repeated.",
)
@take_over_option
@json_option
def command(out: str, buckets: tuple[str, ...], *, take_over: bool, as_json: bool) -> None:
    """Remove the work folder and temporary files that an interrupted run left in OUT.

    The run cannot be resumed after this. Files of a finished dataset are never removed, and nothing is done while a
    run works in OUT.
    """
    for bucket in buckets:
        name_bucket(bucket)
    removed = clean(parse_location(out), take_over=take_over)
    if as_json:
        click.echo(json.dumps(asdict(removed), indent=2))
        return
    for path in removed.files[:_MAX_LISTED]:
        click.echo(f"removed {path}")
    if len(removed.files) > _MAX_LISTED:
        click.echo(f"removed {len(removed.files) - _MAX_LISTED:,} others")
    note = "; the finished dataset is unchanged" if removed.is_dataset else ""
    click.echo(
        f"{format_count(len(removed.files), 'file')}, {format_bytes(removed.num_bytes)} removed from {out}{note}"
    )
