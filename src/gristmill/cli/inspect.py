"""`gristmill inspect`: what a dataset holds."""

import json
from itertools import islice
from typing import Any

import click
import msgspec

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.printing import one_line
from gristmill.cli.tables import print_books, print_duplicates, print_table, print_tokens
from gristmill.pipeline.outline import amount
from gristmill.shards.dataset import Dataset, open_dataset
from gristmill.shards.token_rows import CHATS

_EXAMPLE_CHARS = 2000


@click.command(epilog="Example: gristmill inspect out -n 5 --split validation")
@dataset_argument
@click.option("-n", "num_records", type=click.IntRange(min=0), default=3, show_default=True, help="Records to show.")
@click.option("--split", help="Only the records of one split.")
@click.option("--quarantine", "of_quarantine", is_flag=True, help="Show records that were set aside, and why.")
@json_option
def command(out: str, num_records: int, split: str | None, *, of_quarantine: bool, as_json: bool) -> None:
    """Show the columns, counts, books and first records of the dataset in OUT."""
    dataset = open_dataset(out)
    if split is not None:
        dataset = dataset.split(split)
    records = list(islice(dataset.quarantine() if of_quarantine else dataset, num_records))
    if as_json:
        click.echo(json.dumps({**_facts(dataset), "records": records}, indent=2, default=str))
        return
    _print(dataset)
    if of_quarantine and not records:
        click.echo("nothing was set aside")
    for number, record in enumerate(records):
        _print_record(f"set aside {number}" if of_quarantine else f"record {number}", record)
    if dataset.manifest.kind == CHATS and records and not of_quarantine:
        _print_trained(dataset)
    click.echo(f"next: gristmill verify {out}, or gristmill trace {out} 0 to see where a record came from")


def _counts(dataset: Dataset) -> list[tuple[str, str, int, int, int]]:
    """Split, source, rows, shards, bytes."""
    sums: dict[tuple[str, str], list[int]] = {}
    for split, source, shard in dataset.manifest.shards():
        if split in dataset.splits:
            total = sums.setdefault((split, source), [0, 0, 0])
            for index, value in enumerate((shard.rows, 1, shard.bytes)):
                total[index] += value
    return [(split, source, *values) for (split, source), values in sums.items()]  # type: ignore[misc]


def _facts(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    names = ("split", "source", "rows", "shards", "bytes")
    return {
        "folder": str(dataset.folder),
        "kind": manifest.kind,
        "format": manifest.format,
        "dataset_hash": manifest.dataset_hash,
        "num_rows": len(dataset),
        "columns": manifest.schema.columns,
        **_trained(dataset),
        "counts": [dict(zip(names, row, strict=True)) for row in _counts(dataset)],
        "books": manifest.books,
        "quarantine": manifest.quarantine.counts,
        "deduplicated": [msgspec.to_builtins(step) for step in manifest.deduplicated],
        "versions": manifest.versions,
    }


def _trained(dataset: Dataset) -> dict[str, int]:
    """Of chats, how many tokens there are and how many of them are trained."""
    if dataset.manifest.kind != CHATS:
        return {}
    shards = [shard for split, _, shard in dataset.manifest.shards() if split in dataset.splits]
    return {
        "tokens": sum(shard.tokens or 0 for shard in shards),
        "trained_tokens": sum(shard.trained_tokens or 0 for shard in shards),
    }


def _print(dataset: Dataset) -> None:
    manifest = dataset.manifest
    kind = f"rows of {manifest.kind}" if manifest.holds_rows else manifest.kind
    click.echo(f"{dataset.folder}: {len(dataset):,} {kind}, {manifest.format}, {manifest.dataset_hash}")
    rows = [
        (split, source, f"{num_rows:,}", f"{num_shards:,}", amount(num_bytes))
        for split, source, num_rows, num_shards, num_bytes in _counts(dataset)
    ]
    print_table(("split", "source", "rows", "shards", "size"), rows, num_words=2)
    print_table(("column", "type"), manifest.schema.columns.items(), num_words=2)
    print_books(manifest.books)
    print_tokens(manifest)
    print_duplicates(manifest, num_largest=3)


def _print_record(title: str, record: dict[str, Any]) -> None:
    click.echo(title)
    for name, value in record.items():
        click.echo(f"  {one_line(name)}: {one_line(value)}")


def _print_trained(dataset: Dataset) -> None:
    """The text of the first row: what is trained stands in brackets, and on a terminal in another colour."""
    click.echo("text of record 0, what is trained in ⟦ ⟧:")
    left = _EXAMPLE_CHARS
    for text, trained in dataset.spans(0):
        shown = "\n".join(one_line(line, left) for line in text[:left].split("\n"))
        click.echo(click.style(f"⟦{shown}⟧", fg="green") if trained else shown, nl=False)
        left -= len(text)
        if left <= 0:
            click.echo(" …", nl=False)
            break
    click.echo()
