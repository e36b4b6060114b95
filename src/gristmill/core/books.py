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

    >>> account = Account(step="length", taken=10, given=8, dropped=Counter(too_short=2))
    >>> account.balances
    True
    """

    step: str
    taken: int = 0
    created: int = 0
    given: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    measures: Counter[str] = field(default_factory=Counter)
    """What else was counted: tokens, rows, padding."""
    text_bytes: int = 0
    """Of the texts in what it gave."""
    tokens: int = 0
    """In what it gave."""

    @property
    def balances(self) -> bool:
        is_even = self.taken + self.created == self.given + self.dropped.total() + self.quarantined.total()
        return is_even and self.created >= 0

    def add(self, other: Account) -> None:
        self.taken += other.taken
        self.created += other.created
        self.given += other.given
        self.dropped.update(other.dropped)
        self.quarantined.update(other.quarantined)
        self.measures.update(other.measures)
        self.text_bytes += other.text_bytes
        self.tokens += other.tokens

    def to_dict(self) -> dict[str, object]:
        return {
            "step": self.step,
            "in": self.taken,
            "created": self.created,
            "out": self.given,
            "dropped": dict(sorted(self.dropped.items())),
            "quarantined": dict(sorted(self.quarantined.items())),
            **({"text_bytes": self.text_bytes} if self.text_bytes else {}),
            **({"tokens": self.tokens} if self.tokens else {}),
            **({"measures": dict(sorted(self.measures.items()))} if self.measures else {}),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, object]) -> Account:
        return cls(
            step=str(state["step"]),
            taken=int(state["in"]),  # type: ignore[call-overload]
            created=int(state["created"]),  # type: ignore[call-overload]
            given=int(state["out"]),  # type: ignore[call-overload]
            dropped=_counts(state["dropped"]),
            quarantined=_counts(state["quarantined"]),
            measures=_counts(state.get("measures", {})),
            text_bytes=int(state.get("text_bytes", 0)),  # type: ignore[call-overload]
            tokens=int(state.get("tokens", 0)),  # type: ignore[call-overload]
        )


def _counts(state: object) -> Counter[str]:
    return Counter({name: operator.index(count) for name, count in dict(state).items()})  # type: ignore[call-overload]


def _token_problems(account: Account) -> list[str]:
    """Where documents become rows, every token is in one or was counted out: `in = in rows + truncated + dropped`."""
    count = account.measures
    accounted = count["row_tokens"] + count["truncated_tokens"] + count["dropped_tokens"]
    if "row_tokens" not in count or count["tokens"] == accounted:
        return []
    return [f"{account.step}: {count['tokens']} tokens came in, {accounted} are in rows or counted out"]


def unbalanced(accounts: Iterable[Account]) -> list[str]:
    """What is wrong with a chain of accounts, in words; empty if nothing is lost."""
    problems = []
    previous: Account | None = None
    for account in accounts:
        if not account.balances:
            problems.append(f"{account.step}: {account.to_dict()} does not balance")
        problems += _token_problems(account)
        if previous is not None and previous.given != account.taken:
            problems.append(f"{previous.step} gave {previous.given} records, but {account.step} took {account.taken}")
        previous = account
    return problems
