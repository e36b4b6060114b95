"""`gristmill export`: a dataset in another format."""

import json
from pathlib import Path

import click

from gristmill.cli.options import Choice, backend_option, dataset_argument, json_option
from gristmill.cli.tables import print_lines
from gristmill.core.quantities import format_bytes, format_count
from gristmill.exports.formats import export_formats, find_export_format
from gristmill.exports.training import COLUMNS
from gristmill.pipeline.jobs.export import export


@click.command(epilog="Example: gristmill export out --to megatron --path bin/corpus")
@dataset_argument
@click.option("--to", type=Choice([kind.name for kind in export_formats()]), required=True, help="The format.")
@click.option(
    "--path", help="How the files' names begin, such as bin/corpus; for nanogpt a folder. Default: OUT-FORMAT/OUT."
)
@click.option("--split", help="Only this split. Default: each, in files of its own.")
@click.option("--source", help="Only this source. Default: all, one after the other.")
@click.option(
    "--vocab-size", type=click.IntRange(min=1), help="With added tokens: decides how wide ids are in token files."
)
@click.option(
    "--columns",
    type=Choice(COLUMNS),
    help="Of tokens in parquet, jsonl or webdataset. Default: training for chats in parquet and jsonl, else stored.",
)
@click.option("--overwrite", is_flag=True, help="Replace files of these names.")
@click.option("--workers", type=click.IntRange(min=1), help="How many. Default: as many as this machine allows.")
@backend_option
@json_option
def command(
    out: str,
    to: str,
    path: str | None,
    split: str | None,
    source: str | None,
    vocab_size: int | None,
    columns: str | None,
    workers: int | None,
    backend: str,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the dataset in OUT in another format.

    megatron, nanogpt and llmc take tokens that were not packed, in the order of the documents; numpy takes
    packed rows; webdataset, parquet and jsonl take any dataset. Files appear when all of them are whole.
    """
    exported = export(
        out,
        to=to,
        path=path or _default_path(out, to),
        split=split,
        source=source,
        vocab_size=vocab_size,
        columns=columns,
        overwrite=overwrite,
        workers=workers or "auto",
        backend=backend,
    )
    sizes = {str(file): file.stat().st_size for file in exported.files}
    if as_json:
        facts = {
            "files": sizes,
            "rows": exported.rows,
            "usage": exported.usage,
            "notes": exported.notes,
            "nan_as_null": exported.nan_as_null,
        }
        click.echo(json.dumps(facts, indent=2))
        return
    for name, num_bytes in sizes.items():
        click.echo(f"{name}  {format_bytes(num_bytes)}")
    rows = ", ".join(f"{split} {count:,}" for split, count in exported.rows.items())
    click.echo(f"done: rows {rows}; {format_count(len(sizes), 'file')}, {format_bytes(sum(sizes.values()))}")
    if exported.nan_as_null:
        click.echo(f"nan_as_null: {exported.nan_as_null:,} NaN or infinite, which JSON has not, are null")
    for usage in exported.usage:
        click.echo(f"use it: {usage}")
    for note in exported.notes:
        print_lines(f"note: {note}")


def _default_path(out: str, to: str) -> Path:
    """Beside the dataset: a folder, and in it the beginning of the files' names where they have one."""
    folder = Path(out).absolute()
    exported = Path(out).parent / f"{folder.name}-{to}"
    return exported if find_export_format(to).folder_suffix else exported / folder.name
