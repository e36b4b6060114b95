"""The books: for each source and step, where every record went. `in + created = out + dropped + quarantined`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Counts = Counter[str]
else:
    # msgspec decodes no Counter. It decodes a dict, of which `Account.__post_init__` makes a Counter.
    Counts = dict[str, int]

ALWAYS_ALLOWED = 10
"""This many records of a source may be quarantined, no matter how few it has."""
UNKNOWN = "unknown_"
"""How the names of counters begin for what a reader does not understand and leaves out."""
_LEFT_OUT_TOKENS = ("truncated_tokens", "dropped_tokens", "shortened_tokens", "cut_tokens")


class Account(
    msgspec.Struct,
    rename={"records_in": "in", "records_out": "out"},
    forbid_unknown_fields=True,  # counts of another format version must not be lost in silence
):
    """The account of one step for one source. Accounts of different tasks add up.

    Receipts and the manifest hold it as it is encoded here. Every key is always there, so that readers of the JSON need
    no defaults.

    >>> account = Account(step="length", records_in=10, records_out=8, dropped=Counter(too_short=2))
    >>> account.is_balanced
    True
    """

    step: str
    records_in: int = 0
    created: int = 0
    records_out: int = 0
    dropped: Counts = msgspec.field(default_factory=Counter)
    """Records by reason."""
    quarantined: Counts = msgspec.field(default_factory=Counter)
    """Records by reason."""
    counters: Counts = msgspec.field(default_factory=Counter)
    """What else the step has counted, such as tokens, rows and padding."""
    text_bytes: int = 0
    """Bytes of text in the records that came out."""
    tokens: int = 0
    """Tokens in the records that came out."""

    def __post_init__(self) -> None:
        self.dropped = Counter(self.dropped)
        self.quarantined = Counter(self.quarantined)
        self.counters = Counter(self.counters)

    @property
    def is_balanced(self) -> bool:
        is_even = self.records_in + self.created == self.records_out + self.dropped.total() + self.quarantined.total()
        return is_even and self.created >= 0

    def add(self, other: Account) -> None:
        """Add the counts of another account of the same step."""
        self.records_in += other.records_in
        self.created += other.created
        self.records_out += other.records_out
        self.dropped.update(other.dropped)
        self.quarantined.update(other.quarantined)
        self.counters.update(other.counters)
        self.text_bytes += other.text_bytes
        self.tokens += other.tokens

    def copy_sorted(self) -> Account:
        """Copy the account with its reasons and counters in the order of their names.

        Counters keep the order in which reasons first occurred. Sorted, equal accounts are equal bytes.
        """
        return msgspec.structs.replace(
            self,
            dropped=Counter(dict(sorted(self.dropped.items()))),
            quarantined=Counter(dict(sorted(self.quarantined.items()))),
            counters=Counter(dict(sorted(self.counters.items()))),
        )


def count_left_out_tokens(accounts: Iterable[Account]) -> int:
    """Count the tokens of records that are in the dataset, but not complete, and of documents that fit no row."""
    return sum(account.counters[name] for account in accounts for name in _LEFT_OUT_TOKENS)


def add_books(books: Iterable[Sequence[Account]]) -> list[Account]:
    """Add up the books of several tasks of one source and stage, step by step."""
    sums: list[Account] = []
    for accounts in books:
        sums = sums or [Account(step=account.step) for account in accounts]
        for total, account in zip(sums, accounts, strict=True):
            total.add(account)
    return sums


def find_imbalances(accounts: Iterable[Account]) -> list[str]:
    """Describe what is wrong with the books of a source; an empty list if no record is lost."""
    problems = []
    previous: Account | None = None
    for account in accounts:
        if not account.is_balanced:
            problems.append(
                f"{account.step} does not balance: {account.records_in} records in and {account.created} created, but "
                f"{account.records_out} out, {account.dropped.total()} dropped and "
                f"{account.quarantined.total()} quarantined"
            )
        count = account.counters
        accounted = count["row_tokens"] + count["truncated_tokens"] + count["dropped_tokens"]
        if "row_tokens" in count and count["tokens"] != accounted:
            problems.append(
                f"{account.step}: {count['tokens']} tokens came in, but {accounted} are in rows or counted out"
            )
        if previous is not None and previous.records_out != account.records_in:
            problems.append(
                f"{previous.step} let {previous.records_out} records out, but {account.records_in} came into "
                f"{account.step}"
            )
        previous = account
    return problems


def max_quarantined_records(num_records: int, max_quarantine: float) -> float:
    """Return how many of a source's records may be quarantined."""
    return max(ALWAYS_ALLOWED, max_quarantine * num_records)


def estimate_unread_records(num_records: int, num_bytes: int, num_unread: int) -> int:
    """Estimate how many records were in the bytes of a source that could not be read, by the mean size of the others.

    >>> estimate_unread_records(num_records=100, num_bytes=5000, num_unread=1000)
    25
    """
    return num_records * num_unread // max(num_bytes - num_unread, 1)
