"""Numbers in columns: the books, and what else a person compares."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.cli.printing import one_line
from gristmill.cli.summary import books_lines, is_short, line_width, summary_width, token_lines, wrap, wrap_line
from gristmill.core.books import Account
from gristmill.shards.manifest import Manifest

_WIDTH_OF_FILES = 200
"""What is not a terminal has no width: lines are not cut there."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, num_words: int = 1) -> None:
    """A table on standard output; the first `num_words` columns are words, the others numbers."""
    table = Table(box=SIMPLE, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < num_words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=line_width(sys.stdout) or _WIDTH_OF_FILES).print(table)


def print_books(books: Mapping[str, Sequence[Account]], *, details: bool = False, more: str | None = None) -> None:
    """Where every record went; with `details` all that was counted, else `more` is the command that shows it."""
    for line in books_lines(books, summary_width(), details=details):
        click.echo(line)
    if more is not None and not details and is_short(books):
        print_wrapped(f"every step and reason: {more}")
    for name, accounts in books.items():
        counters = sum((account.counters for account in accounts), Counter[str]())
        if num_blank := counters["blank"]:
            print_wrapped(f"skipped in {one_line(name)}: {num_blank:,} blank, which are no records")
        if num_empty := counters["empty_files"]:
            print_wrapped(f"skipped in {one_line(name)}: {num_empty:,} files without a byte")
        if count := counters["nan_as_null"]:
            print_wrapped(f"nan_as_null in {one_line(name)}: {count:,} NaN or infinite, which JSON has not, are null")
        if count := counters["literal_quotes"]:
            print_wrapped(
                f"literal_quotes in {one_line(name)}: {count:,} fields begin with a quote, which stays in them: in "
                "their file most such quotes are not closed"
            )
        if count := counters["other_fields"]:
            print_wrapped(
                f"other_fields in {one_line(name)}: {count:,} records have fields or values that fit no column"
            )
        if count := counters["members_too_large"]:
            print_wrapped(
                f"members_too_large in {one_line(name)}: {count:,} members of tars are left out, larger than "
                "max_record_bytes"
            )


def print_tokens(manifest: Manifest) -> None:
    """Tokens and rows of each source; nothing for a dataset of documents."""
    for line in token_lines(manifest, summary_width()):
        click.echo(line)


def print_duplicates(manifest: Manifest, *, num_largest: int = 0) -> None:
    """How large the clusters of `deduplicate` are, where each removed document is named, and the largest clusters."""
    for step in manifest.deduplicated:
        if not step.rows:
            print_wrapped("deduplicate: no duplicates were found")
            continue
        sizes = ", ".join(f"{size}: {count:,}" for size, count in step.cluster_sizes.items())
        print_wrapped(f"clusters by size: {sizes or 'none'}; each removed document and its survivor: {step.file.path}")
        if step.verify == "signature":
            print_wrapped("no texts were compared (verify: signature): similarities of near duplicates are estimates")
        for cluster in step.largest[:num_largest]:
            place = f"{cluster.source}, {cluster.path}, position {cluster.position:,}"
            print_wrapped(f"  {cluster.size:,} like {place}: {one_line(cluster.samples[0], 80)}")


def print_wrapped(text: str) -> None:
    """A sentence, in as many lines as the terminal needs."""
    for line in wrap(text, summary_width()):
        click.echo(line)


def print_lines(text: str, *, err: bool = False, breaks_words: bool = False) -> None:
    """Lines of a list or a tree, each wrapped behind its own indent where a terminal is too narrow for it."""
    width = line_width(sys.stderr if err else sys.stdout)
    for line in text.splitlines():
        for part in wrap_line(line, width, breaks_words=breaks_words):
            click.echo(part, err=err)
