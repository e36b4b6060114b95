"""Sections about the dataset: their numbers are those of the books."""

import pytest

from gristmill.shards.dataset import open_dataset


@pytest.fixture(scope="module")
def shown(browser, web):
    opened = browser.open(f"file://{web}/report.html")
    yield opened
    opened.close()


def test_the_numbers_are_those_of_the_books(shown, web):
    manifest = open_dataset(web).manifest
    cards = dict(
        shown.run(
            "[...document.querySelectorAll('.cards > div')].map(d => [...d.children].map(c => c.firstChild.data))"
        )
    )
    books = manifest.books
    assert cards["records in"] == f"{sum(accounts[0].records_in for accounts in books.values()):,}"
    assert cards["records out"] == f"{sum(accounts[-1].records_out for accounts in books.values()):,}"
    assert cards["dropped"] == f"{sum(a.dropped.total() for accounts in books.values() for a in accounts):,}"
    lines = shown.run(
        "[...document.querySelectorAll('#books tbody tr')].map(r => [...r.cells].slice(0, 7).map(c => c.textContent))"
    )
    assert lines == [
        [source, account.step, *(
            f"{n:,}" for n in (
                account.records_in, account.created, account.records_out,
                account.dropped.total(), account.quarantined.total(),
            )
        )]
        for source in sorted(books) for account in books[source]
    ]  # fmt: skip
    rules = shown.run(
        "[...document.querySelectorAll('#rules tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert sum(int(count.replace(",", "")) for _, _, count, _, _, kind, _ in rules if kind == "dropped") == sum(
        account.dropped.total() for accounts in books.values() for account in accounts
    )
