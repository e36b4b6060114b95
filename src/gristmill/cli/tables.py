"""Tables and sentences on the terminal: the books, and other counts."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import click

from gristmill.cli.printing import to_one_line
from gristmill.cli.summary import format_books, format_tokens, is_short, line_width, summary_width, wrap, wrap_line
from gristmill.core.books import Account
from gristmill.shards.manifests.manifest import Manifest

_WIDTH_OF_FILES = 200
"""The width of tables that are not printed to a terminal."""
_COUNTERS = {
    "blank": "skipped in {source}: blank lines: {count}",
    "empty_files": "skipped in {source}: empty files: {count}",
    "skipped_members": "skipped in {source}: {count} links, devices and names without an extension in tars",
    "nan_as_null": "nan_as_null in {source}: {count} numbers (NaN, infinity) became null: JSON has none",
    "literal_quotes": (
        "literal_quotes in {source}: {count} fields begin with a quote that is part of the text, because most such "
        "quotes in their file are not closed"
    ),
    "other_fields": "other_fields in {source}: {count} records have fields or values that fit no column",
    "members_too_large": (
        "members_too_large in {source}: {count} members of tars were left out, because they are larger than "
        "max_record_bytes"
    ),
    "broken_exif": "broken_exif in {source}: {count} images have an EXIF block that cannot be read, and are kept",
}
"""What is said about counters that a user should see."""
_CLEANING = {
    "tag": "they are tagged and stay in the dataset (action: tag; drop and cut remove)",
    "drop": "training documents among them were dropped",
    "cut": "the passages were cut out of training documents",
}
"""What each `action` of `decontaminate` did to the documents with items."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, num_words: int = 1) -> None:
    """Print a table. The first `num_words` columns are words, the others are numbers."""
    from rich.box import SIMPLE  # noqa: PLC0415  (a run prints its books without it)
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < num_words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=line_width(sys.stdout) or _WIDTH_OF_FILES).print(table)


def print_books(books: Mapping[str, Sequence[Account]], *, details: bool = False, more: str | None = None) -> None:
    """Print what happened to every record. `more` is the command that shows all counts, as `details` does."""
    for line in format_books(books, summary_width(), details=details):
        click.echo(line)
    if more is not None and not details and is_short(books):
        print_wrapped(f"all steps and reasons: {more}")
    for name, accounts in books.items():
        counters = sum((account.counters for account in accounts), Counter[str]())
        for counter, sentence in _COUNTERS.items():
            if count := counters[counter]:
                print_wrapped(sentence.format(source=to_one_line(name), count=f"{count:,}"))


def print_tokens(manifest: Manifest) -> None:
    """Print the tokens and rows of each source. A dataset of documents has none."""
    for line in format_tokens(manifest, summary_width()):
        click.echo(line)


def print_duplicates(manifest: Manifest, *, num_largest: int = 0) -> None:
    """Print the sizes of the clusters of `deduplicate`, the file of removed documents, and the largest clusters."""
    for step in manifest.deduplicated:
        if not step.rows:
            print_wrapped("deduplicate: no duplicates were found")
            continue
        sizes = ", ".join(f"{size}: {count:,}" for size, count in step.cluster_sizes.items())
        print_wrapped(
            f"clusters by size: {sizes or 'none'}; removed documents and those kept in their place: {step.file.path}"
        )
        if step.verify == "signature":
            print_wrapped("no texts were compared (verify: signature): similarities of near duplicates are estimates")
        for cluster in step.largest[:num_largest]:
            place = f"{cluster.source}, {cluster.path}, position {cluster.position:,}"
            print_wrapped(f"  {cluster.size:,} like {place}: {to_one_line(cluster.samples[0], 80)}")


def print_contamination(manifest: Manifest) -> None:
    """Print how many items of benchmarks were found, and in how many documents of which sources."""
    for step in manifest.decontaminated:
        for benchmark, check in step.benchmarks.items():
            sources = ", ".join(
                f"{counts['documents']:,} of {to_one_line(source)}"
                for source, counts in step.found.get(benchmark, {}).items()
            )
            num_unchecked = sum(map(len, check.unchecked.values()))
            print_wrapped(
                f"decontaminate: {check.found:,} of {check.items:,} items of {to_one_line(benchmark)} found"
                + (f", in documents: {sources}; {_CLEANING[step.action]}" if sources else "")
                + (f"; {num_unchecked:,} could not be checked" if num_unchecked else "")
            )


def print_wrapped(text: str) -> None:
    """Print a sentence, wrapped to the width of the terminal."""
    for line in wrap(text, summary_width()):
        click.echo(line)


def print_lines(text: str, *, err: bool = False, breaks_words: bool = False) -> None:
    """Print the lines of a list or a tree. A line that is too long is wrapped below its own indent."""
    width = line_width(sys.stderr if err else sys.stdout)
    for line in text.splitlines():
        for part in wrap_line(line, width, breaks_words=breaks_words):
            click.echo(part, err=err)
