"""Accounts balance or say why not, and are the same JSON wherever they are stored."""

from collections import Counter

import msgspec
import pytest

from gristmill.core.books import Account, add_books, find_imbalances


def make_account(**changes):
    counts = {
        "records_in": 10,
        "created": 2,
        "records_out": 8,
        "dropped": Counter(short=3),
        "quarantined": Counter(bad=1),
    }
    return Account("length", **{**counts, **changes})


def test_an_account_comes_back_from_json_with_its_counters():
    account = make_account(counters=Counter(tokens=5), tokens=5)
    decoded = msgspec.json.decode(msgspec.json.encode(account), type=Account)
    assert decoded == account
    decoded.dropped["long"] += 1
    assert decoded.dropped.total() == 4


def test_every_key_is_always_there():
    keys = ["step", "in", "created", "out", "dropped", "quarantined", "counters", "text_bytes", "tokens"]
    assert list(msgspec.to_builtins(Account("read"))) == keys


@pytest.mark.parametrize("wrong", ['"measures":{}', '"in":"9"', '"dropped":{"short":1.5}', '"dropped":[]'])
def test_accounts_of_other_versions_or_with_wrong_values_are_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"step":"read",{wrong}}}', type=Account)


def test_sums():
    books = [[make_account(), Account("pack")], [make_account(dropped=Counter(long=3)), Account("pack", tokens=7)]]
    length, pack = add_books(books)
    assert (length.records_in, length.dropped) == (20, {"short": 3, "long": 3})
    assert pack.tokens == 7
    assert books[0][0] == make_account()


def test_equal_accounts_are_equal_bytes_whatever_came_first():
    one, other = (
        make_account(dropped=Counter(reasons)).copy_sorted() for reasons in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


@pytest.mark.parametrize(
    ("accounts", "words"),
    [
        ([make_account(records_out=9)], "length does not balance"),
        ([make_account(records_out=5, created=-1)], "length does not balance"),
        ([make_account(), Account("write", records_in=7, records_out=7)], "let 8 records out, but 7 came into write"),
        ([Account("pack", counters=Counter(tokens=9, row_tokens=8))], "9 tokens came in, but 8"),
    ],
)
def test_what_does_not_balance_is_named(accounts, words):
    [problem] = find_imbalances(accounts)
    assert words in problem


def test_nothing_is_wrong_with_books_that_balance():
    assert find_imbalances([make_account(), Account("write", records_in=8, records_out=8)]) == []
