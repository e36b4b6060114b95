"""Tables and sentences on the terminal: the books, and other counts.

The books fit a terminal of 80 columns, or 50 columns on a phone, with one line for each step: how many records are left
after it, how many are gone and, where there is room, their share. The reasons follow, the most frequent first. So each
line follows from the one above it: records + created - gone = records. `details` shows all reasons, the steps of many
sources and all other counts.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, chop_cells, set_cell_size

from gristmill.cli.printing import echo, to_one_line
from gristmill.core.books import Account, count_left_out_tokens, make_step_table
from gristmill.core.checks import escape_controls
from gristmill.core.quantities import format_count, format_share
from gristmill.shards.stored_files import MixedShare
from gristmill.shards.token_rows import CHATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    from gristmill.shards.manifest import Manifest


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
    """Print a table. The first `num_words` columns are words, the others are numbers.

    In a terminal that is too narrow for it, each row is a block of lines: a name that is broken cannot be read.
    """
    table = [[escape_controls(cell) for cell in row] for row in (columns, *rows)]
    width = line_width(sys.stdout) or _WIDTH_OF_FILES
    sizes = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    if sum(sizes) + 3 * len(sizes) > width:
        _print_blocks(table, width, max(1, num_words))
        return
    from rich.box import SIMPLE  # noqa: PLC0415  (a run prints its books without it)
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = Table(box=SIMPLE, pad_edge=False)
    for number, name in enumerate(columns):
        shown.add_column(name, justify="left" if number < num_words else "right")
    for row in table[1:]:
        shown.add_row(*map(Text, row))
    Console(width=width).print(shown)


def _print_blocks(table: Sequence[Sequence[str]], width: int, num_words: int) -> None:
    """Print each row as its words, and below them its numbers with the names of their columns."""
    heads, *rows = table
    for row in rows:
        words = "  ".join(filter(None, row[:num_words]))
        numbers = [f"{head} {cell}" for head, cell in zip(heads[num_words:], row[num_words:], strict=True) if cell]
        for line in [*wrap(words, width, breaks_words=num_words > 1), *wrap(f"  {', '.join(numbers)}", width)]:
            echo(line)


def print_books(books: Mapping[str, Sequence[Account]], *, details: bool = False, more: str | None = None) -> None:
    """Print what happened to every record. `more` is the command that shows all counts, as `details` does."""
    for line in format_books(books, summary_width(), details=details):
        echo(line)
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
        echo(line)


def print_duplicates(manifest: Manifest, *, num_largest: int = 0) -> None:
    """Print the sizes of the clusters of `deduplicate`, the file of removed documents, and the largest clusters."""
    for step in manifest.deduplicated:
        if not step.rows:
            print_wrapped("deduplicate: no duplicates were found")
            continue
        sizes = ", ".join(f"{count:,} of {size}" for size, count in step.cluster_sizes.items())
        print_wrapped(
            f"deduplicate: clusters of documents: {sizes or 'none'}; each removed document and the one kept "
            f"for it: {step.file.path}"
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
        echo(line)


def print_lines(text: str, *, err: bool = False, breaks_words: bool = False) -> None:
    """Print the lines of a list or a tree. A line that is too long is wrapped below its own indent."""
    width = line_width(sys.stderr if err else sys.stdout)
    for line in text.splitlines():
        for part in wrap_line(line, width, breaks_words=breaks_words):
            echo(part, err=err)


MAX_WIDTH = 80
"""Numbers that are further apart are harder to read, however wide the terminal is."""
_MIN_WIDTH = 40
_SHARE_FROM = 60
"""The smallest width with room for shares."""
_MAX_REASONS = 4
_MAX_SENTENCES = 3
"""The tokens of more sources than this are a table."""
MAX_SOURCES = 20
"""Tables have a line for each of this many sources, the largest, and one for all others."""
_SPACE = re.compile(r"\s")
_BELOW = str.maketrans("├└─", "│  ")


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

    Paths and commands are never cut, so that they can be copied. `breaks_words` is for text that is not copied.
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


class _Columns:
    """Lines of a label and up to three numbers, each number in a separate column."""

    HEADS = ("records", "removed", "share")

    def __init__(self, width: int, numbers: Iterable[int], labels: Iterable[str], reasons: Iterable[str]) -> None:
        size = 2 + max(len(self.HEADS[0]), *(len(f"{number:,}") for number in numbers))
        self._sizes = (size, size, 8)[: 3 if width >= _SHARE_FROM else 2]
        # The first number of a reason's line is empty, so that it may be longer.
        longest = max(0, *map(_num_cells, labels), *(_num_cells(reason) - size for reason in reasons))
        self._label = min(width - sum(self._sizes), longest)

    def line(self, label: str, *cells: str) -> str:
        """Format a line. `cells` fill the first columns; a label extends over empty columns, or over several lines."""
        shown = [*cells, "", "", ""][: len(self._sizes)]
        num_empty = next((index for index, cell in enumerate(shown) if cell), len(shown))
        room = self._label + sum(self._sizes[:num_empty])
        numbers = "".join(f"{cell:>{size}}" for cell, size in list(zip(shown, self._sizes, strict=True))[num_empty:])
        indent = label[: len(label) - len(label.lstrip(" "))]
        *full, last = wrap(to_one_line(label, 1000), room, f"{indent}  ", breaks_words=True) or [""]
        return "\n".join([*full, f"{set_cell_size(last, room)}{numbers}".rstrip()])


def _num_cells(label: str) -> int:
    return cell_len(to_one_line(label, 1000))


def is_short(books: Mapping[str, Sequence[Account]]) -> bool:
    """Whether `format_books` leaves something out: the steps of many sources, or reasons of a step."""
    accounts = [account for accounts in books.values() for account in accounts]
    return len(books) > 1 or any(len(_list_reasons(account)) > _MAX_REASONS + 1 for account in accounts)


def format_books(books: Mapping[str, Sequence[Account]], width: int, *, details: bool = False) -> Iterator[str]:
    """Format the books of all sources in lines of at most `width` columns."""
    for lines in _format_books(books, width, details=details):
        yield from lines.split("\n")


def _format_books(books: Mapping[str, Sequence[Account]], width: int, *, details: bool) -> Iterator[str]:
    if len(books) > 1 and not details:
        yield from _format_step_table(books, width)
        return
    largest = [account.records_in + account.created for steps in books.values() for account in steps]
    labels = [f"  {account.step}" for steps in books.values() for account in steps]
    reasons = [reason for steps in books.values() for account in steps for _, reason in _list_reasons(account)]
    labels += ["    created" for steps in books.values() for account in steps if account.created]
    columns = _Columns(width, [0, *largest], ["", *books, *labels], ["    999 more reasons", *reasons])
    for source, steps in books.items():
        yield columns.line(source, *columns.HEADS)
        for account in steps:
            yield from _account_lines(columns, account, details=details)
            if details and +account.counters:
                counts = "; ".join(f"{name} {count:,}" for name, count in sorted(account.counters.items()) if count)
                yield from wrap(f"    counted: {to_one_line(counts, 10_000)}", width, indent="      ")


def _format_step_table(books: Mapping[str, Sequence[Account]], width: int) -> Iterator[str]:
    """Format what each step removed from each source, and the most frequent reasons.

    Steps that do not fit the width are one column: names are never broken.
    """
    steps, sources, total = make_step_table(books)
    lines = [*sources, total]

    def make_columns(shown: Sequence[int], *, has_share: bool) -> list[tuple[str, list[str]]]:
        columns = [("in", [f"{line.came:,}" for line in lines])]
        if total.created:
            columns.append(("made", [f"{line.created:,}" if line.created else "" for line in lines]))
        columns += [(to_one_line(steps[step]), [_show_loss(line.removed[step]) for line in lines]) for step in shown]
        if hidden := [step for step in range(len(steps)) if step not in shown]:
            name = "other steps" if shown else "removed"
            columns.append((name, [_show_loss(sum(line.removed[step] for step in hidden)) for line in lines]))
        columns.append(("left", [f"{line.left:,}" for line in lines]))
        shares = [format_share(line.left, line.came + line.created) if line.came else "" for line in lines]
        return [*columns, ("share", shares)] if has_share else columns

    by_size = sorted(range(len(steps)), key=lambda step: -total.removed[step])
    choices = [(sorted(by_size[:number]), width >= _SHARE_FROM) for number in range(len(steps), -1, -1)]
    label = min(max(_num_cells(line.name) for line in lines), width // 3)
    for shown, has_share in [*choices, ([], False)]:
        columns = make_columns(shown, has_share=has_share)
        if label + sum(_measure_columns(columns)) <= width:
            break
    else:  # sums beyond 10^10 on a phone
        columns = [columns[0], columns[-1]]
        label = min(label, width - sum(_measure_columns(columns)))
    yield from _format_columns([line.name for line in lines], columns, label)
    reasons: Counter[tuple[str, str]] = Counter()
    for accounts in books.values():
        for account in accounts:
            reasons.update({(account.step, reason): count for reason, count in account.dropped.items()})
            reasons.update({(account.step, f"{name} (quarantined)"): n for name, n in account.quarantined.items()})
    most = [f"{to_one_line(step)}: {to_one_line(reason)} {count:,}" for (step, reason), count in reasons.most_common(5)]
    if most:
        yield from wrap(f"removed most: {'; '.join(most)}", width, breaks_words=True)


def _measure_columns(columns: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    return [2 + max(map(cell_len, (name, *cells))) for name, cells in columns]


def _format_columns(names: Sequence[str], columns: Sequence[tuple[str, Sequence[str]]], label: int) -> Iterator[str]:
    """Format a table: a name of at most `label` cells in each line, or several lines, and columns of numbers."""
    sizes = _measure_columns(columns)
    heads = zip(columns, sizes, strict=True)
    yield " " * label + "".join(f"{' ' * (size - cell_len(name))}{name}" for (name, _), size in heads)
    for number, name in enumerate(names):
        *full, last = wrap(to_one_line(name, 1000), label, "", breaks_words=True) or [""]
        yield from full
        cells = "".join(f"{cells[number]:>{size}}" for (_, cells), size in zip(columns, sizes, strict=True))
        yield f"{set_cell_size(last, label)}{cells}".rstrip()


def _show_loss(number: int) -> str:
    return f"-{number:,}" if number else ""


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
    return columns.line(label, f"{num_left:,}", f"{num_gone:,}", format_share(num_gone, num_came))


def format_tokens(manifest: Manifest, width: int) -> Iterator[str]:
    """Format the tokens and rows of each source. A dataset of documents has none."""
    if not manifest.holds_rows:
        return
    if len(manifest.books) > _MAX_SENTENCES:
        yield from _format_token_table(manifest, width)
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
        facts += _list_row_facts(count, count_left_out_tokens(accounts))
        yield from wrap(f"{to_one_line(source)}: {'; '.join(facts)}", width)


def _format_token_table(manifest: Manifest, width: int) -> Iterator[str]:
    """Format the tokens of many sources: a line for each of the largest, for all others, and for all."""
    amounts, sums = manifest.amounts(), {}
    for source, accounts in manifest.books.items():
        amount = amounts.get(source, MixedShare(rows=0))
        numbers = (amount.tokens or 0, amount.rows, amount.trained_tokens or 0, count_left_out_tokens(accounts))
        sums[source] = np.array(numbers, np.int64)
    ranked = sorted(sums, key=lambda source: (-int(sums[source][0]), source))
    lines = [(source, sums[source]) for source in ranked[:MAX_SOURCES]]
    if len(ranked) > MAX_SOURCES:
        lines.append(
            (f"{len(ranked) - MAX_SOURCES} others", np.sum([sums[source] for source in ranked[MAX_SOURCES:]], axis=0))
        )
    lines.append((f"all {len(ranked)}", np.sum(list(sums.values()), axis=0)))
    values = [numbers for _, numbers in lines]
    columns = [(name, [f"{row[index]:,}" for row in values]) for index, name in enumerate(("tokens", "rows"))]
    if manifest.kind == CHATS:
        columns.append(("trained", [format_share(int(row[2]), int(row[0])) if row[0] else "" for row in values]))
    if values[-1][3]:
        columns.append(("left out", [f"{row[3]:,}" if row[3] else "" for row in values]))
    if manifest.row_length:
        places = [int(row[1]) * manifest.row_length for row in values]
        columns.append(("filled", [f"{row[0] / n:.1%}" if n else "" for row, n in zip(values, places, strict=True)]))
    label = min(max(_num_cells(name) for name, _ in lines), width // 3)
    while label + sum(_measure_columns(columns)) > width and len(columns) > 1:
        columns.pop()
    yield from _format_columns([name for name, _ in lines], columns, label)


def _list_row_facts(count: Counter[str], left_out: int) -> Iterator[str]:
    """Describe which documents are not complete in the rows, or were changed."""
    if count["split_documents"]:
        yield f"{format_count(count['split_documents'], 'document')} split over rows"
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
    if count["special_literals"]:
        yield f"{count['special_literals']:,} special tokens found in texts"
