"""What a dataset holds: `gristmill inspect` shows it, `report` writes its report, `verify` checks every file."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
import msgspec

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.printing import echo, print_json, quote_path, to_one_line
from gristmill.cli.tables import (
    MAX_SOURCES,
    print_books,
    print_contamination,
    print_duplicates,
    print_lines,
    print_table,
    print_tokens,
)
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.recipe import DEFAULT_SAMPLES, MAX_SAMPLES
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.pipeline.inspecting.trace import make_text_reader
from gristmill.pipeline.publishing.clean import lock_output
from gristmill.pipeline.publishing.failed_run import open_failed_run
from gristmill.report.write import load_report, write_report
from gristmill.runtime.process import block_pandas_import
from gristmill.shards.dataset import Dataset, open_dataset
from gristmill.shards.derived_files import REPORT, REPORT_PAGE, encode_report
from gristmill.shards.token_rows import CHATS, LENGTHS, find_preference_values, list_parts
from gristmill.shards.verify import verify
from gristmill.storage.locations import is_remote, parse_location

_EXAMPLE_CHARS = 2000
_DOCUMENT_CHARS = 300


@click.command(epilog="Example: gristmill inspect out -n 5 --split validation")
@dataset_argument
@click.option(
    "-n", "num_records", type=click.IntRange(min=0), default=3, show_default=True, help="Number of records to show."
)
@click.option("--split", help="Show only this split.")
@click.option("--details", is_flag=True, help="Show all counts of the books, for each step of each source.")
@click.option("--ids", is_flag=True, help="Show the token ids of rows, in addition to their text.")
@click.option(
    "--quarantine", "of_quarantine", is_flag=True, help="Show quarantined records, and why they were quarantined."
)
@json_option
def inspect_command(
    out: str, num_records: int, split: str | None, *, details: bool, ids: bool, of_quarantine: bool, as_json: bool
) -> None:
    """Show the columns, counts, books and first records of the dataset in OUT.

    Records are numbered from 0, as in trace. Rows of tokens are shown as text.
    """
    failed = open_failed_run(parse_location(out)) if of_quarantine else None
    dataset = open_dataset(out) if failed is None else failed[0]
    if split is not None:
        dataset = dataset.split(split)
    if of_quarantine:
        records: list[dict[str, Any]] = list(islice(dataset.quarantine(), num_records))
    else:
        records = [_readable(dataset, number, ids=ids) for number in range(min(num_records, len(dataset)))]
    if as_json:
        print_json(json.dumps({**_collect_facts(dataset), "records": records}, indent=2, default=str))
        return
    if failed is not None:
        print_lines(f"the run {failed[1].describe()}")
    _print(dataset, details=details)
    if of_quarantine and not dataset.manifest.quarantine.counts:
        echo("nothing was quarantined")
    for number, record in enumerate(records):
        if of_quarantine:
            _print_record(f"quarantined {number}", record)
        elif dataset.manifest.holds_rows:
            _print_row(dataset, number, record)
        else:
            _print_record(f"record {number}", record)
    target = quote_path(out)
    if failed is not None:
        echo(f"next: gristmill view {target}")
        return
    echo(f"next: gristmill verify {target}, or gristmill trace {target} 0 to find the input of a record")


def _readable(dataset: Dataset, number: int, *, ids: bool) -> dict[str, Any]:
    """Make a record readable: for a row of tokens, the text of each document instead of its ids."""
    record = dataset[number]
    if not dataset.manifest.holds_rows:
        return record
    visible_text: dict[str, Any] = {"documents": dataset.documents(number), "lengths": record[LENGTHS].tolist()}
    visible_text |= {name: record[name] for name, _ in find_preference_values(dataset.schema)}
    if ids:
        visible_text |= {name: values.tolist() for name, values in record.items() if name in (INPUT_IDS, LOSS_MASK)}
    return visible_text


def _describe_counts(dataset: Dataset) -> list[tuple[str, str, int, int, int]]:
    """Count rows, shards and bytes of each split and source."""
    sums: dict[tuple[str, str], list[int]] = {}
    for split, source, shard in dataset.manifest.shards():
        if split in dataset.splits:
            total = sums.setdefault((split, source), [0, 0, 0])
            for index, value in enumerate((shard.rows, 1, shard.bytes)):
                total[index] += value
    return [(split, source, *values) for (split, source), values in sums.items()]  # type: ignore[misc]


def _collect_facts(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    names = ("split", "source", "rows", "shards", "bytes")
    return {
        "folder": str(dataset.folder),
        "kind": manifest.kind,
        "format": manifest.format,
        "dataset_hash": manifest.dataset_hash,
        "num_rows": len(dataset),
        "columns": manifest.schema.columns,
        **_count_trained_tokens(dataset),
        "counts": [dict(zip(names, row, strict=True)) for row in _describe_counts(dataset)],
        "books": msgspec.to_builtins(manifest.books),
        "quarantine": manifest.quarantine.counts,
        "deduplicated": [msgspec.to_builtins(step) for step in manifest.deduplicated],
        "decontaminated": [msgspec.to_builtins(step) for step in manifest.decontaminated],
        "versions": manifest.versions,
        "plugins": manifest.plugins,
    }


def _count_trained_tokens(dataset: Dataset) -> dict[str, int]:
    """Count the tokens of chats, and those of them that are trained."""
    if dataset.manifest.kind != CHATS:
        return {}
    shards = [shard for split, _, shard in dataset.manifest.shards() if split in dataset.splits]
    return {
        "tokens": sum(shard.tokens or 0 for shard in shards),
        "trained_tokens": sum(shard.trained_tokens or 0 for shard in shards),
    }


def _print(dataset: Dataset, *, details: bool) -> None:
    manifest = dataset.manifest
    kind = f"rows of {manifest.kind}" if manifest.holds_rows else manifest.kind
    print_lines(f"{dataset.folder}: {len(dataset):,} {kind}, {manifest.format}, {manifest.dataset_hash}")
    rows = [
        (split, source, f"{num_rows:,}", f"{num_shards:,}", format_bytes(num_bytes))
        for split, source, num_rows, num_shards, num_bytes in _describe_counts(dataset)
    ]
    print_table(("split", "source", "rows", "shards", "size"), rows[:MAX_SOURCES], num_words=2)
    if len(rows) > MAX_SOURCES:
        echo(f"  {len(rows) - MAX_SOURCES:,} more; --json lists all")
    print_table(("column", "type"), manifest.schema.columns.items(), num_words=2)
    print_books(manifest.books, details=details, more=f"gristmill inspect {quote_path(dataset.folder)} --details")
    print_tokens(manifest)
    print_duplicates(manifest, num_largest=3)
    print_contamination(manifest)


def _print_record(title: str, record: dict[str, Any]) -> None:
    echo(title)
    for name, value in record.items():
        print_lines(f"  {to_one_line(name)}: {to_one_line(value)}", breaks_words=True)


def _print_row(dataset: Dataset, number: int, record: dict[str, Any]) -> None:
    """Print the text of a row, document by document. In chats, trained text is in brackets, on a terminal in color."""
    lengths = record["lengths"]
    parts = [part.removesuffix("_ids") + ", " for part in list_parts(dataset.schema)]
    described = "a prompt and its answers" if parts else format_count(len(lengths), "document")
    echo(f"record {number}: {described}, {format_count(sum(lengths), 'token')}")
    if dataset.manifest.kind == CHATS:
        echo("  trained text is in ⟦ ⟧:")
        _print_trained_text(dataset, number)
    else:
        left = _EXAMPLE_CHARS
        for text, length, part in zip(record["documents"], lengths, parts or [""] * len(lengths), strict=True):
            if left <= 0:
                echo("  …")
                break
            visible_text = to_one_line(text, min(left, _DOCUMENT_CHARS))
            print_lines(f"  {part}{format_count(length, 'token')}: {visible_text}", breaks_words=True)
            left -= min(len(text), _DOCUMENT_CHARS)
    for name in (INPUT_IDS, LOSS_MASK, *(name for name, _ in find_preference_values(dataset.schema))):
        if name in record:
            print_lines(f"  {name}: {record[name]}")


def _print_trained_text(dataset: Dataset, number: int) -> None:
    left = _EXAMPLE_CHARS
    for text, trained in dataset.spans(number):
        visible_text = "\n".join(to_one_line(line, left) for line in text[:left].split("\n"))
        click.echo(click.style(f"⟦{visible_text}⟧", fg="green") if trained else visible_text, nl=False)
        left -= len(text)
        if left <= 0:
            echo(" …", nl=False)
            break
    echo()


@click.command(epilog="Example: gristmill report out --samples 0")
@dataset_argument
@click.option(
    "--samples",
    type=click.IntRange(min=0, max=MAX_SAMPLES),
    help="Records of each kind to show; 0: none. Default: as in the report that is there; none if it cannot be read.",
)
@json_option
def report_command(out: str, samples: int | None, *, as_json: bool) -> None:
    """Write report.html and report.json of the dataset in OUT.

    Every run writes them, too. The page needs no network and no other file. It says how many records it holds.
    """
    folder = open_dataset(out).folder
    # A run that is ending writes the report, too, with its times: one after the other.
    with nullcontext() if is_remote(folder) else lock_output(folder):
        _rewrite_report(open_dataset(folder), samples, as_json=as_json)


def _rewrite_report(dataset: Dataset, samples: int | None, *, as_json: bool) -> None:
    old = load_report(dataset.folder)
    wanted = old.samples.wanted if old is not None and old.samples is not None else None
    # Records that no one asked for are not shown: the recipe may have forbidden it with `samples: 0`.
    is_unknown = samples is None and wanted is None
    if samples is None:
        samples = wanted or 0
    run = old.run if old is not None and old.dataset_hash == dataset.manifest.dataset_hash else None
    report = write_report(
        dataset.folder,
        dataset.manifest,
        "report",
        samples=samples,
        run=run,
        reads_store=True,
        read_text=make_text_reader(dataset.manifest),
    )
    if as_json:
        echo(encode_report(report).decode(), nl=False)
        return
    num_records = report.samples.num_records if report.samples is not None else 0
    size = format_bytes(report.page.bytes) if report.page is not None else ""
    print_lines(f"{dataset.folder / REPORT_PAGE}: {size}, holds {format_count(num_records, 'record')} of the data")
    print_lines(f"{dataset.folder / REPORT}: all numbers")
    if is_unknown:
        print_lines(
            "no records are shown: no earlier report says how many are wanted. "
            f"For up to {DEFAULT_SAMPLES} of each kind: --samples {DEFAULT_SAMPLES}"
        )


@click.command(epilog="Example: gristmill verify out")
@dataset_argument
@json_option
def verify_command(out: str, *, as_json: bool) -> None:
    """Check the whole dataset in OUT: every checksum, row count, origin and account.

    Exits with 1 and names each damaged file if something is not as it was written.
    """
    block_pandas_import()
    verification = verify(out)
    if as_json:
        print_json(json.dumps({"ok": bool(verification), **asdict(verification)}, indent=2))
    else:
        for problem in verification.problems:
            print_lines(f"damaged: {problem}")
        checked = ", ".join(
            (
                format_count(verification.num_shards, "shard"),
                format_count(verification.num_rows, "record"),
                format_bytes(verification.num_bytes),
            )
        )
        outcome = format_count(len(verification.problems), "problem") if verification.problems else "all as written"
        print_lines(f"{outcome}: {checked} in {out}")
        if not verification:
            print_lines("help: restore the files from a copy, or rebuild the dataset with --overwrite")
    if not verification:
        click.get_current_context().exit(1)
