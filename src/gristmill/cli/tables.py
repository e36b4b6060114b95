"""Numbers in columns: the books, and what else a person compares."""

import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.core.books import Account

_WIDTH_OF_FILES = 200
"""What is not a terminal has no width: lines are not cut there."""


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
