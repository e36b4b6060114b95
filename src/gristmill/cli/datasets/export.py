"""`gristmill export`: write a dataset in another format."""

import json
from pathlib import Path

import click

from gristmill.cli.options import Choice, backend_option, dataset_argument, json_option, ray_option
from gristmill.cli.tables import print_lines
from gristmill.core.quantities import format_bytes, format_count
from gristmill.exports.formats import find_export_format, list_format_names
from gristmill.exports.training import COLUMNS
from gristmill.pipeline.jobs.export import export


@click.command(epilog="Example: gristmill export out --to megatron --path bin/corpus")
@dataset_argument
@click.option("--to", type=Choice(list_format_names()), required=True, help="Format to write.")
@click.option(
    "--path",
    help="Beginning of the files' names, such as bin/corpus; for llamafactory, nanogpt, mds and litdata a folder. On "
    "this machine, on a store (s3://bucket/corpus), or hf://datasets/OWNER/NAME. Default: OUT-FORMAT/OUT.",
)
@click.option("--split", help="Export only this split. Default: all, each in its own files.")
@click.option("--source", help="Export only this source. Default: all, one after the other.")
@click.option(
    "--vocab-size",
    type=click.IntRange(min=1),
    help="Vocabulary size with added tokens: it decides how wide ids are in token files.",
)
@click.option(
    "--columns",
    type=Choice(COLUMNS),
    help="Columns of tokens in parquet, jsonl and webdataset. Default: training for chats in parquet and jsonl, else "
    "stored.",
)
@click.option(
    "--licence",
    "licences",
    multiple=True,
    metavar="SOURCE=LICENCE",
    help="Licence of a source, for the card on the Hub; may be repeated.",
)
@click.option(
    "--row-group-rows",
    type=click.IntRange(min=1),
    help="Rows in a row group. Default: for parquet as many as 32 MiB hold, for megatron-bridge 500.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Number of workers. Default: as many as this machine allows."
)
@backend_option("processes", "Where tasks run.")
@ray_option
@json_option
def command(
    out: str,
    to: str,
    path: str | None,
    split: str | None,
    source: str | None,
    vocab_size: int | None,
    columns: str | None,
    licences: tuple[str, ...],
    row_group_rows: int | None,
    workers: int | None,
    backend: str,
    ray_address: str | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the dataset in OUT in another format.

    megatron, olmo-core, nanogpt and llmc take tokens that are not packed, in the order of the documents; numpy, mds and
    megatron-bridge take packed rows; litdata and llamafactory take both; webdataset, parquet and jsonl take any
    dataset. The files appear together, when all are complete.
    """
    exported = export(
        out,
        to=to,
        path=path or _choose_default_path(out, to),
        split=split,
        source=source,
        vocab_size=vocab_size,
        columns=columns,
        licences=_parse_licences(licences),
        row_group_rows=row_group_rows,
        overwrite=overwrite,
        workers=workers or "auto",
        backend=backend,
        ray_address=ray_address,
    )
    sizes = exported.uploaded or {str(file): file.stat().st_size for file in exported.files}
    if as_json:
        facts = {
            "files": sizes,
            "rows": exported.rows,
            "usage": exported.usage,
            "notes": exported.notes,
            "nan_as_null": exported.nan_as_null,
            "commit": exported.commit,
        }
        click.echo(json.dumps(facts, indent=2))
        return
    for name, num_bytes in sizes.items():
        click.echo(f"{name}  {format_bytes(num_bytes)}")
    rows = ", ".join(f"{split} {count:,}" for split, count in exported.rows.items())
    click.echo(f"done: rows {rows}; {format_count(len(sizes), 'file')}, {format_bytes(sum(sizes.values()))}")
    if exported.commit:
        click.echo(f"commit: {exported.commit}")
    if exported.nan_as_null:
        click.echo(f"nan_as_null: {exported.nan_as_null:,} numbers (NaN, infinity) became null: JSON has none")
    for usage in exported.usage:
        click.echo(f"usage: {usage}")
    for note in exported.notes:
        print_lines(f"note: {note}")


def _parse_licences(words: tuple[str, ...]) -> dict[str, str]:
    """Parse words such as `web=odc-by`: the licence of each source."""
    for word in words:
        if not all(word.partition("=")):
            raise click.UsageError(f"--licence {word}: write SOURCE=LICENCE, such as web=odc-by")
    return {source: licence for source, _, licence in (word.partition("=") for word in words)}


def _choose_default_path(out: str, to: str) -> Path:
    """Choose a folder beside the dataset and, unless the format takes a folder, the beginning of the files' names.

    The files of a dataset on a store go to the current folder.
    """
    place = Path(out.rstrip("/").rpartition("/")[2]) if "://" in out else Path(out)
    folder = place.absolute()
    exported = place.parent / f"{folder.name}-{to}"
    return exported if find_export_format(to).folder_suffixes else exported / folder.name
