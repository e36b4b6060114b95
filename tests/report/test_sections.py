"""Sections about the dataset: their numbers are those of the books."""

import pytest

from gristmill.core.quantities import format_bytes
from gristmill.report.write import load_report
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
    assert cards["books"] == "balance"
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
    total = shown.run(
        "[...document.querySelector('#funnel figure').querySelectorAll('tbody tr')].map(r => r.cells[2].textContent)"
    )
    assert total == [f"{sum(a.records_out for a in accounts):,}" for accounts in zip(*books.values(), strict=True)]
    rules = shown.run(
        "[...document.querySelectorAll('#rules tbody tr')].map(r => [...r.cells].slice(0, 4).map(c => c.textContent))"
    )
    assert sum(int(count.replace(",", "")) for _, _, kind, count in rules if kind == "dropped") == sum(
        account.dropped.total() for accounts in books.values() for account in accounts
    )


def test_funnels_begin_with_bytes_and_end_with_tokens(web, mixed_rows):
    for folder, ending in ((web, " of it left."), (mixed_rows, " tokens.")):
        report = load_report(folder)
        for name, source in report.sources.items():
            text = sum(step.text_bytes for step in report.funnel[name][:1])
            words = f"{format_bytes(source.input_bytes)} of files, {format_bytes(text)} of text, "
            rest = (folder / "report.html").read_text().partition(words)[2].partition("<")[0]
            assert rest.endswith(ending), (name, rest)
            assert (f"{source.tokens:,} tokens" in rest) == bool(source.tokens)
