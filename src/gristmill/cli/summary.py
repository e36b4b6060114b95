"""The books in lines that fit a terminal of 80 columns, or 50 columns on a phone.

One line for each step: how many records are left after it, how many are gone and, where there is room, their share.
The reasons follow, the most frequent first. So each line follows from the one above it: records + created - gone =
records. `details` shows all reasons, the steps of many sources and all other counts.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells, set_cell_size

from gristmill.cli.printing import to_one_line
from gristmill.core.quantities import format_count
from gristmill.shards.manifests.stored_files import MixedShare
from gristmill.shards.token_rows import CHATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    from gristmill.core.books import Account
    from gristmill.shards.manifests.manifest import Manifest

MAX_WIDTH = 80
"""Numbers that are further apart are harder to read, however wide the terminal is."""
_MIN_WIDTH = 40
_SHARE_FROM = 60
"""The smallest width with room for shares."""
_MAX_REASONS = 4
_MAX_SOURCES = 3
"""More sources than this get one line each."""
_LEFT_OUT = ("truncated_tokens", "dropped_tokens", "shortened_tokens", "cut_tokens")
"""The counters of tokens that are in no row."""


def summary_width() -> int:
    """Return the width of a summary: that of the terminal, and for a file 80 columns."""
    return min(max(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, _MIN_WIDTH), MAX_WIDTH)


def line_width(stream: TextIO) -> int | None:
    """Return the width of the stream's terminal, or `COLUMNS`; None: it is a file, whose lines are not wrapped.

    People search error messages in log files, so a message must not be broken there.
    """
    is_terminal = stream.isatty()
    if os.environ.get("COLUMNS", "").isdigit() and (is_terminal or stream is sys.stdout):
        return max(int(os.environ["COLUMNS"]), _MIN_WIDTH)
    return max(os.get_terminal_size(stream.fileno()).columns, _MIN_WIDTH) if is_terminal else None


def wrap(text: str, width: int, indent: str = "  ", *, breaks_words: bool = False) -> list[str]:
    """Wrap a sentence into lines of at most `width` columns.

    Paths and commands are never cut, so that they can be copied. `breaks_words` is for text that nobody copies.
    """
    lines: list[str] = []
    line = ""
    for word in re.findall(r"\s*\S+", text):
        shown = _SPACE.sub(" ", word)
        if line.strip() and cell_len(line) + cell_len(shown) > width:
            lines.append(line)
            line, shown = indent, shown.lstrip()
        if breaks_words and cell_len(line) + cell_len(shown) > width:
            *full, shown = chop_cells(shown, width - len(indent))  # a first line may have room for more
            lines += (f"{line if not number else indent}{piece}" for number, piece in enumerate(full))
            line = indent
        line += shown
    return [*lines, line] if line else []


_SPACE = re.compile(r"\s")


def wrap_line(line: str, width: int | None, *, breaks_words: bool = False) -> list[str]:
    """Wrap a line of a list or a tree so that its continuation stays to the right of the branches.

    >>> for line in wrap_line("│   ├── note: these words are too many", 28):
    ...     print(line)
    │   ├── note: these words
    │   │     are too many
    """
    if width is None or cell_len(line) <= width:
        return [line]
    branches = line[: len(line) - len(line.lstrip(" │├└─"))]
    below = branches.translate(_BELOW)
    room = max(width - cell_len(branches), _MIN_WIDTH // 2)
    first, *rest = wrap(line[len(branches) :], room, breaks_words=breaks_words) or [""]
    return [f"{branches}{first}", *(f"{below}{part}" for part in rest)]


_BELOW = str.maketrans("├└─", "│  ")


class _Columns:
    """Lines of a label and up to three numbers, each number in a column of its own."""

    HEADS = ("records", "gone", "share")

    def __init__(self, width: int, numbers: Iterable[int], labels: Iterable[str], reasons: Iterable[str]) -> None:
        size = 2 + max(len(self.HEADS[0]), *(len(f"{number:,}") for number in numbers))
        self._sizes = (size, size, 8)[: 3 if width >= _SHARE_FROM else 2]
        # The first number of a reason's line is empty, so that it may be longer.
        longest = max(0, *map(_num_cells, labels), *(_num_cells(reason) - size for reason in reasons))
        self._label = min(width - sum(self._sizes), longest)

    def line(self, label: str, *cells: str) -> str:
        """Format a line. `cells` fill the first columns; a label may extend over empty columns."""
        shown = [*cells, "", "", ""][: len(self._sizes)]
        num_empty = next((index for index, cell in enumerate(shown) if cell), len(shown))
        room = self._label + sum(self._sizes[:num_empty])
        numbers = "".join(f"{cell:>{size}}" for cell, size in list(zip(shown, self._sizes, strict=True))[num_empty:])
        shown_label = to_one_line(label, 1000)
        if cell_len(shown_label) > room:
            shown_label = f"{set_cell_size(shown_label, room - 1)}…"
        return f"{set_cell_size(shown_label, room)}{numbers}".rstrip()


def _num_cells(label: str) -> int:
    return cell_len(to_one_line(label, 1000))


def is_short(books: Mapping[str, Sequence[Account]]) -> bool:
    """Whether `format_books` leaves something out: the steps of many sources, or reasons of a step."""
    accounts = [account for accounts in books.values() for account in accounts]
    return len(books) > _MAX_SOURCES or any(len(_list_reasons(account)) > _MAX_REASONS + 1 for account in accounts)


def format_books(books: Mapping[str, Sequence[Account]], width: int, *, details: bool = False) -> Iterator[str]:
    """Format the books of all sources in lines of at most `width` columns."""
    largest = [account.records_in + account.created for steps in books.values() for account in steps]
    labels = [f"  {account.step}" for steps in books.values() for account in steps]
    reasons = [reason for steps in books.values() for account in steps for _, reason in _list_reasons(account)]
    columns = _Columns(width, [0, *largest], ["", *books, *labels], ["", *reasons])
    if len(books) > _MAX_SOURCES and not details:
        yield columns.line("", *columns.HEADS)
        for source, steps in books.items():
            if steps:
                num_came = steps[0].records_in + sum(account.created for account in steps)
                yield _step_line(columns, source, num_came, steps[-1].records_out)
        return
    for source, steps in books.items():
        yield columns.line(source, *columns.HEADS)
        for account in steps:
            yield from _account_lines(columns, account, details=details)
            if details and +account.counters:
                counts = "; ".join(f"{name} {count:,}" for name, count in sorted(account.counters.items()) if count)
                yield from wrap(f"    counted: {to_one_line(counts, 10_000)}", width, indent="      ")


def _account_lines(columns: _Columns, account: Account, *, details: bool) -> Iterator[str]:
    yield _step_line(columns, f"  {account.step}", account.records_in + account.created, account.records_out)
    if account.created:
        yield columns.line("    created", f"{account.created:,}")
    reasons = _list_reasons(account)
    # A line "1 more reason" would take the place of the reason itself.
    shown = reasons if details or len(reasons) <= _MAX_REASONS + 1 else reasons[:_MAX_REASONS]
    for count, reason in shown:
        yield columns.line(reason, "", f"{count:,}")
    hidden = reasons[len(shown) :]
    if hidden:
        yield columns.line(f"    {len(hidden)} more reasons", "", f"{sum(count for count, _ in hidden):,}")


def _list_reasons(account: Account) -> list[tuple[int, str]]:
    """List the reasons why records are gone, the most frequent first."""
    reasons = [(count, f"    {reason}") for reason, count in account.dropped.items()]
    reasons += [(count, f"    {reason} (quarantined)") for reason, count in account.quarantined.items()]
    return sorted(reasons, key=lambda item: (-item[0], item[1]))


def _step_line(columns: _Columns, label: str, num_came: int, num_left: int) -> str:
    num_gone = num_came - num_left
    if not num_gone:
        return columns.line(label, f"{num_left:,}")
    return columns.line(label, f"{num_left:,}", f"{num_gone:,}", f"{num_gone / num_came:.1%}")


def format_tokens(manifest: Manifest, width: int) -> Iterator[str]:
    """Format the tokens and rows of each source. A dataset of documents has none."""
    if not manifest.holds_rows:
        return
    for source, accounts in manifest.books.items():
        count: Counter[str] = sum((account.counters for account in accounts), Counter())
        num_encoded = sum(account.counters["tokens"] for account in accounts if account.counters["bytes"])
        amounts = manifest.amounts().get(source, MixedShare(rows=0))
        num_rows, num_tokens = amounts.rows, amounts.tokens or 0
        facts = [f"{format_count(num_tokens, 'token')} in {format_count(num_rows, 'row')}"]
        if manifest.row_length and num_rows:
            facts[0] += f", {num_tokens / (num_rows * manifest.row_length):.2%} filled"
        if num_encoded:
            facts.append(f"{count['bytes'] / num_encoded:.2f} bytes per token")
        if manifest.kind == CHATS and num_tokens:
            facts.append(f"{(amounts.trained_tokens or 0) / num_tokens:.2%} of them trained")
        facts += _list_row_facts(count)
        yield from wrap(f"{to_one_line(source)}: {'; '.join(facts)}", width)


def _list_row_facts(count: Counter[str]) -> Iterator[str]:
    """Describe which documents are not complete in the rows, or were changed."""
    if count["split_documents"]:
        yield f"{format_count(count['split_documents'], 'document')} split over rows"
    left_out = sum(count[name] for name in _LEFT_OUT)
    if left_out:
        yield f"{left_out:,} tokens left out"
    if count["shortened_chats"]:
        yield (
            f"{count['shortened_chats']:,} chats shortened by {count['dropped_messages']:,} messages, "
            f"{count['shortened_tokens']:,} tokens"
        )
    if count["cut_chats"]:
        yield f"{count['cut_chats']:,} chats cut at their end by {count['cut_tokens']:,} tokens"
    if count["truncated_documents"]:
        truncated = format_count(count["truncated_documents"], "document")
        yield f"{truncated} truncated by {format_count(count['truncated_tokens'], 'token')}"
    if count["encoded_by_reference"]:
        yield f"{count['encoded_by_reference']:,} texts encoded by tokenizers because fastokens fails on them"
    if count["tail_rows"]:
        yield f"{format_count(count['tail_rows'], 'row')} made of leftovers of units, at the end"
    if count["special_literals"]:
        yield f"{count['special_literals']:,} special tokens found in texts"
