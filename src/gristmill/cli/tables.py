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
from gristmill.core.books import Account
from gristmill.shards.manifest import Manifest, MixedShare
from gristmill.shards.token_rows import CHATS

_WIDTH_OF_FILES = 200
"""What is not a terminal has no width: lines are not cut there."""


_LEFT_OUT = ("truncated_tokens", "dropped_tokens", "shortened_tokens", "cut_tokens")
"""Measures of tokens that are in no row."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, num_words: int = 1) -> None:
    """A table on standard output; the first `num_words` columns are words, the others numbers."""
    table = Table(box=SIMPLE, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < num_words else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(table)


def print_books(books: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Where every record went: in + created = out + dropped + quarantined, in each line."""
    columns = ("source", "step", "dropped as", "set aside as", "in", "created", "out", "dropped", "set aside")
    print_table(columns, (row for name, states in books.items() for row in _rows(name, states)), num_words=4)
    for name, states in books.items():
        measures = sum((Account.from_dict(state).measures for state in states), Counter[str]())
        if num_blank := measures["blank"]:
            click.echo(f"skipped in {name}: {num_blank:,} blank, which are no records")
        if num_empty := measures["empty_files"]:
            click.echo(f"skipped in {name}: {num_empty:,} files without a byte")
        if count := measures["nan_as_null"]:
            click.echo(f"nan_as_null in {name}: {count:,} NaN or infinite, which JSON has not, are null")
        if count := measures["other_fields"]:
            click.echo(f"other_fields in {name}: {count:,} records have fields or values that fit no column")
        if count := measures["members_too_large"]:
            click.echo(
                f"members_too_large in {name}: {count:,} members of tars are left out, larger than max_record_bytes"
            )


def print_tokens(manifest: Manifest) -> None:
    """Tokens and rows of each source; nothing for a dataset of documents."""
    if not manifest.holds_rows:
        return
    columns = ["source", "tokens", "bytes a token", "rows", "filled", "split", "tokens left out", "special literals"]
    if manifest.kind == CHATS:
        columns.append("trained")
    rows = []
    for source in manifest.books:
        accounts = manifest.accounts(source)
        count: Counter[str] = sum((account.measures for account in accounts), Counter())
        num_encoded = sum(account.measures["tokens"] for account in accounts if account.measures["bytes"])
        amounts = manifest.amounts().get(source, MixedShare(rows=0))
        num_rows, num_tokens = amounts.rows, amounts.tokens or 0
        places = num_rows * manifest.row_length if manifest.row_length else num_tokens
        rows.append(
            [
                source,
                f"{num_tokens:,}",
                f"{count['bytes'] / num_encoded:.2f}" if num_encoded else "",
                f"{num_rows:,}",
                f"{num_tokens / places:.2%}" if places else "",
                f"{count['split_documents']:,}",
                f"{sum(count[name] for name in _LEFT_OUT):,}",
                f"{count['special_literals']:,}",
            ]
        )
        if manifest.kind == CHATS:
            rows[-1].append(f"{(amounts.trained_tokens or 0) / num_tokens:.2%}" if num_tokens else "")
    print_table(columns, rows)
    for source in manifest.books:
        for note in _notes_on_rows(sum((account.measures for account in manifest.accounts(source)), Counter())):
            click.echo(f"{source}: {note}")


def _notes_on_rows(count: Mapping[str, int]) -> Iterable[str]:
    """What of the documents does not stand in the rows as it came."""
    if count["shortened_chats"]:
        yield (
            f"{count['shortened_chats']:,} chats were shortened by {count['dropped_messages']:,} messages, "
            f"{count['shortened_tokens']:,} tokens"
        )
    if count["cut_chats"]:
        yield f"{count['cut_chats']:,} chats were cut at their end by {count['cut_tokens']:,} tokens"
    if count["truncated_documents"]:
        yield f"{count['truncated_documents']:,} documents were truncated by {count['truncated_tokens']:,} tokens"
    if count["tail_rows"]:
        yield f"{count['tail_rows']:,} rows are made of tails of units, and stand last"


def print_duplicates(manifest: Manifest, *, num_largest: int = 0) -> None:
    """What `deduplicate` has taken from each source, how large its clusters are, and the largest of them."""
    for step in manifest.deduplicated:
        rows = []
        for source, account in step.loss.items():
            exact, near = account.get("duplicate", 0), account.get("near_duplicate", 0)
            share = f"{(exact + near) / account['in']:.2%}" if account["in"] else ""
            rows.append((source, f"{account['in']:,}", f"{exact:,}", f"{near:,}", share))
        print_table(("deduplicated", "documents", "duplicate", "near duplicate", "lost"), rows)
        sizes = ", ".join(f"{size}: {count:,}" for size, count in step.cluster_sizes.items())
        click.echo(f"clusters by size: {sizes or 'none'}; each removed document and its survivor: {step.file.path}")
        if step.verify == "signature":
            click.echo("no texts were compared (verify: signature): similarities of near duplicates are estimates")
        for cluster in step.largest[:num_largest]:
            place = f"{cluster.source}, {cluster.path}, position {cluster.position:,}"
            click.echo(f"  {cluster.size:,} like {place}: {one_line(cluster.samples[0], 80)}")


def _rows(source: str, states: Sequence[Mapping[str, object]]) -> Iterable[Sequence[str]]:
    for number, state in enumerate(states):
        account = Account.from_dict(state)
        yield (
            source if number == 0 else "",
            account.step,
            _reasons(account.dropped),
            _reasons(account.quarantined),
            f"{account.taken:,}",
            f"{account.created:,}",
            f"{account.given:,}",
            f"{account.dropped.total():,}",
            f"{account.quarantined.total():,}",
        )


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" if len(counts) > 1 else reason for reason, count in sorted(counts.items()))
