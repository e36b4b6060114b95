"""The books: for each source and step, where every record went. `in + created = out + dropped + quarantined`."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class Account:
    """One step's account for one source. Accounts of different tasks add up.

    >>> account = Account(step="length", records_in=10, records_out=8, dropped=Counter(too_short=2))
    >>> account.is_balanced
    True
    """

    step: str
    records_in: int = 0
    created: int = 0
    records_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    """What else was counted: tokens, rows, padding."""
    text_bytes: int = 0
    """Of the texts in what it gave."""
    tokens: int = 0
    """In what it gave."""

    @property
    def is_balanced(self) -> bool:
        is_even = self.records_in + self.created == self.records_out + self.dropped.total() + self.quarantined.total()
        return is_even and self.created >= 0

    def add(self, other: Account) -> None:
        self.records_in += other.records_in
        self.created += other.created
        self.records_out += other.records_out
        self.dropped.update(other.dropped)
        self.quarantined.update(other.quarantined)
        self.counters.update(other.counters)
        self.text_bytes += other.text_bytes
        self.tokens += other.tokens

    def to_dict(self) -> dict[str, object]:
        return {
            "step": self.step,
            "in": self.records_in,
            "created": self.created,
            "out": self.records_out,
            "dropped": dict(sorted(self.dropped.items())),
            "quarantined": dict(sorted(self.quarantined.items())),
            **({"text_bytes": self.text_bytes} if self.text_bytes else {}),
            **({"tokens": self.tokens} if self.tokens else {}),
            **({"measures": dict(sorted(self.counters.items()))} if self.counters else {}),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, object]) -> Account:
        return cls(
            step=str(state["step"]),
            records_in=int(state["in"]),  # type: ignore[call-overload]
            created=int(state["created"]),  # type: ignore[call-overload]
            records_out=int(state["out"]),  # type: ignore[call-overload]
            dropped=_counts(state["dropped"]),
            quarantined=_counts(state["quarantined"]),
            counters=_counts(state.get("measures", {})),
            text_bytes=int(state.get("text_bytes", 0)),  # type: ignore[call-overload]
            tokens=int(state.get("tokens", 0)),  # type: ignore[call-overload]
        )


def _counts(state: object) -> Counter[str]:
    return Counter({name: operator.index(count) for name, count in dict(state).items()})  # type: ignore[call-overload]


def _find_token_imbalances(account: Account) -> list[str]:
    """Where documents become rows, every token is in one or was counted out: `in = in rows + truncated + dropped`."""
    count = account.counters
    accounted = count["row_tokens"] + count["truncated_tokens"] + count["dropped_tokens"]
    if "row_tokens" not in count or count["tokens"] == accounted:
        return []
    return [f"{account.step}: {count['tokens']} tokens came in, {accounted} are in rows or counted out"]


def find_imbalances(accounts: Iterable[Account]) -> list[str]:
    """What is wrong with a chain of accounts, in words; empty if nothing is lost."""
    problems = []
    previous: Account | None = None
    for account in accounts:
        if not account.is_balanced:
            problems.append(f"{account.step}: {account.to_dict()} does not balance")
        problems += _find_token_imbalances(account)
        if previous is not None and previous.records_out != account.records_in:
            problems.append(
                f"{previous.step} gave {previous.records_out} records, but {account.step} took {account.records_in}"
            )
        previous = account
    return problems


ALWAYS_ALLOWED = 10
"""So few records may always be set aside."""


def max_quarantined_records(num_records: int, max_quarantine: float) -> float:
    """How many of a source's records may be set aside."""
    return max(ALWAYS_ALLOWED, max_quarantine * num_records)
