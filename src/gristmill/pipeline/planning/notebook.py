"""Plans and results as a notebook shows them: HTML without scripts, everything from files escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.core.books import Account

_HEADS = ("step", "records in", "created", "out", "dropped", "quarantined", "reasons")


def render_text(text: str) -> str:
    """Render text as it is.

    >>> render_text("<b>")
    '<pre>&lt;b&gt;</pre>'
    """
    return f"<pre>{escape(text)}</pre>"


def render_result(title: str, books: Mapping[str, Sequence[Account]]) -> str:
    """Render a title, and the books of each source as a table; tables are folded if there are several."""
    tables = [
        f"<details{' open' if len(books) == 1 else ''}><summary>{escape(source)}</summary>"
        f"{_render_table(accounts)}</details>"
        for source, accounts in books.items()
    ]
    return f"<div><p>{escape(title)}</p>{''.join(tables)}</div>"


def _render_table(accounts: Sequence[Account]) -> str:
    rows = [_render_row("th", _HEADS), *(_render_row("td", _list_cells(account)) for account in accounts)]
    return f"<table>{''.join(rows)}</table>"


def _list_cells(account: Account) -> list[str]:
    numbers = (
        account.records_in,
        account.created,
        account.records_out,
        account.dropped.total(),
        account.quarantined.total(),
    )
    reasons = ", ".join(
        f"{reason} {count:,}" for reason, count in (account.dropped + account.quarantined).most_common()
    )
    return [account.step, *(f"{number:,}" for number in numbers), reasons]


def _render_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
