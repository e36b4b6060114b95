"""The books: for each source and step, where every record went. `in + created = out + dropped + quarantined`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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


class StepTable(NamedTuple):
    """A table of what each step has removed from each source: in every line, in + created = removed + left."""

    steps: list[str]
    """Steps that have removed something from any source."""
    lines: list[StepLine]
    """Sources, the largest first; those beyond the wanted number are one line."""
    total: StepLine


class StepLine(NamedTuple):
    """A line of the table: a source, several small ones, or all."""

    name: str
    came: int
    created: int
    removed: tuple[int, ...]
    """By step. What a step adds, records or bytes, is created."""
    left: int


Measure = Literal["records", "bytes", "tokens"]


def make_step_table(
    books: Mapping[str, Sequence[Account]], measure: Measure = "records", max_lines: int = 20
) -> StepTable:
    """Make the table of what each step has removed, in records, bytes of text or tokens.

    >>> web = [Account("read", 9, records_out=9), Account("length", 9, records_out=7, dropped=Counter(too_short=2))]
    >>> make_step_table({"web": web}).total
    StepLine(name='all 1', came=9, created=0, removed=(2,), left=7)
    """
    columns: list[tuple[str, int]] = []
    cells: dict[str, dict[tuple[str, int], int]] = {}
    ends: dict[str, tuple[int, int, int]] = {}
    for source, accounts in books.items():
        amounts = list(_measure_steps(accounts, measure))
        place, occurrences = 0, Counter[str]()
        cells[source] = {}
        for amount in amounts:
            column = amount.step, occurrences[amount.step]
            occurrences[amount.step] += 1
            if column not in columns:  # behind those that this source has passed
                columns.insert(place, column)
            place = columns.index(column) + 1
            cells[source][column] = amount.removed
        created = sum(amount.created for amount in amounts)
        ends[source] = (amounts[0].came, created, amounts[-1].left) if amounts else (0, 0, 0)
    columns = [column for column in columns if any(removed.get(column) for removed in cells.values())]
    lines = [
        StepLine(source, *ends[source][:2], tuple(cells[source].get(column, 0) for column in columns), ends[source][2])
        for source in sorted(books, key=lambda source: (-ends[source][0], source))
    ]
    total = _add_lines(f"all {len(lines)}", lines, len(columns))
    if len(lines) > max_lines + 1:
        small = _add_lines(f"{len(lines) - max_lines} others", lines[max_lines:], len(columns))
        lines = [*lines[:max_lines], small]
    names = Counter(name for name, _ in columns)
    return StepTable([name if names[name] == 1 else f"{name} {number + 1}" for name, number in columns], lines, total)


class _Amount(NamedTuple):
    """The amounts that came into a step, and that it has removed and left, in one measure."""

    step: str
    came: int
    created: int
    removed: int

    @property
    def left(self) -> int:
        return self.came + self.created - self.removed


def _measure_steps(accounts: Sequence[Account], measure: Measure) -> Iterator[_Amount]:
    """Measure the steps of a source, from the first to the last one that knows the measure.

    Bytes of text are known until texts become tokens. Tokens of records that a step has removed are not known at the
    step that makes them, only those that it has cut.
    """
    before: int | None = None
    cut: list[tuple[str, int]] = []
    """What steps have left out of records before their tokens are counted."""
    for account in accounts:
        if measure == "records":
            yield _Amount(
                account.step,
                account.records_in,
                account.created,
                account.dropped.total() + account.quarantined.total(),
            )
            continue
        left = account.text_bytes if measure == "bytes" else account.tokens or account.counters["row_tokens"]
        if before is None:
            if measure == "tokens" and (left_out := count_left_out_tokens([account])):
                cut.append((account.step, left_out))
            if left:
                before = left + sum(number for _, number in cut)
                for step, number in cut or [(account.step, 0)]:
                    yield _Amount(step, before, 0, number)
                    before -= number
        elif left or not account.records_out:
            yield _Amount(account.step, before, max(left - before, 0), max(before - left, 0))
            before = left


def _add_lines(name: str, lines: Sequence[StepLine], num_steps: int) -> StepLine:
    """Add up lines of the table."""
    removed = tuple(sum(line.removed[step] for line in lines) for step in range(num_steps))
    came, created, left = (sum(getattr(line, field) for line in lines) for field in ("came", "created", "left"))
    return StepLine(name, came, created, removed, left)
