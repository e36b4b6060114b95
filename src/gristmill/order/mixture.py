"""Which source provides row p, and which of its draws that is: O(1) for any p, no counters, no generator.

Weights become integers c that sum to D = 65,536. One period of D rows is scheduled once: draw k of a source must come
in rows floor(kD/c) to ceil((k+1)D/c) - 1, and among the draws that may come next, the one with the earliest deadline
comes first. Such a schedule always exists, and in it each source is less than one row away from its share at every row.
Example: weights 3:1 give web, web, code, web, and so on. (Choosing the largest deficit instead deviates by 1.2 rows,
closed formulas by 2 to 12.) Longer streams repeat the period, whose counts are exact.

Phases: other weights from some row on. A phase starts its own period. Draws continue to count from the phases before
it, so that appending a phase never changes an earlier row. Memory: 0.4 MiB a phase.

`Interleaving` schedules several finite sequences by the same rule, with their numbers of records as weights, so that
they keep their order and are spread evenly: about 1 ns for each record and source, 8 bytes for each source and border.
`plan_shares` computes how much a finite mix takes of each source: shares by largest remainders, so that they sum to its
size, whole epochs first, then a part of one more, as close to the share as whole records allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.checks import check_positive_number, check_real_number, check_whole_number
from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.order.permutation import check_whole_numbers
from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

PERIOD = 65536
MAX_RECORDS = 3_000_000_000
"""The largest number of interleaved records: its square must be less than 2^63."""

Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Phase:
    """The weights of all rows from `first_row` on."""

    first_row: int
    counts: dict[str, int]
    """The rows of each source in a period, without sources that have none."""


class Mixture:
    """Weights over sources, changing at given rows.

    >>> mixture = Mixture({"web": 3, "code": 1})
    >>> sources, draws = mixture(range(6))
    >>> [mixture.sources[source] for source in sources]
    ['web', 'web', 'code', 'web', 'web', 'web']
    >>> draws.tolist()
    [0, 1, 0, 2, 3, 4]
    >>> mixture = mixture.then(4, {"web": 1, "code": 1})
    >>> [mixture.sources[source] for source in mixture(range(4, 8))[0]]
    ['code', 'web', 'code', 'web']
    """

    def __init__(self, weights: Weights | Sequence[tuple[int, Weights]]) -> None:
        phases = [(0, weights)] if isinstance(weights, Mapping) else _parse_phases(weights)
        if not phases or phases[0][0] != 0:
            raise UsageError("the first phase of a mixture starts at row 0", help='for example [(0, {"web": 1.0}), …]')
        self.phases = [Phase(row, period_counts(chosen)) for row, chosen in phases]
        self.sources = sorted({name for phase in self.phases for name in phase.counts})
        """Names of the sources in the order of their numbers: sorted, so that the order of a dict does not matter."""
        self._starts = np.array([phase.first_row for phase in self.phases], dtype=np.int64)
        if (np.diff(self._starts) <= 0).any():
            raise UsageError(f"phases start one after the other, not at rows {self._starts.tolist()}")
        shape = (len(self.phases), len(self.sources))
        self._counts = np.zeros(shape, dtype=np.int64)
        self._drawn_before = np.zeros(shape, dtype=np.int64)
        self._slot_sources = np.empty((len(self.phases), PERIOD), dtype=np.uint16)
        self._slot_draws = np.empty((len(self.phases), PERIOD), dtype=np.int32)
        for number, phase in enumerate(self.phases):
            if number:
                self._drawn_before[number] = self._count_draws(number - 1, phase.first_row)
            self._counts[number] = [phase.counts.get(name, 0) for name in self.sources]
            drawn = np.zeros(shape[1], dtype=np.int64)
            schedule(self._counts[number], 0, drawn, self._slot_sources[number], self._slot_draws[number])

    def __call__(self, rows: Sequence[int] | range | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each row the number of its source (in `sources`), and which draw of that source it is."""
        numbers = np.atleast_1d(check_whole_numbers("rows", rows))
        if numbers.size and int(numbers.min()) < 0:
            raise OutOfRangeError(f"row {int(numbers.min())}: rows are counted from 0")
        sources, draws = np.empty_like(numbers), np.empty_like(numbers)
        tables = (self._starts, self._counts, self._drawn_before, self._slot_sources, self._slot_draws)
        _assign(numbers, *tables, sources, draws)
        return sources, draws

    def draws_before(self, row: int) -> dict[str, int]:
        """Count how many of the first `row` rows come from each source."""
        row = check_whole_number("row", row)
        number = max(int(np.searchsorted(self._starts, row, side="left")) - 1, 0)
        return dict(zip(self.sources, self._count_draws(number, row).tolist(), strict=True))

    def then(self, first_row: int, weights: Weights) -> Mixture:
        """Return the mixture with one more phase. Earlier rows do not change."""
        return Mixture([*((phase.first_row, phase.counts) for phase in self.phases), (first_row, weights)])

    def _count_draws(self, number: int, row: int) -> NDArray[np.int64]:
        """Count the draws of each source before `row`, which is in or just after phase `number`."""
        periods, slots = divmod(row - self.phases[number].first_row, PERIOD)
        in_period = np.bincount(self._slot_sources[number, :slots], minlength=len(self.sources))
        drawn: NDArray[np.int64] = self._drawn_before[number] + periods * self._counts[number] + in_period
        return drawn


def _parse_phases(phases: object) -> list[tuple[int, Weights]]:
    try:
        pairs = [(row, weights) for row, weights in phases]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        pairs = []
    if not all(isinstance(weights, Mapping) for _, weights in pairs):
        pairs = []
    if not pairs:
        raise UsageError(
            f"a mixture is weights, or a list of phases, not {phases!r:.80}", help='for example [(0, {"web": 1.0}), …]'
        )
    return [(check_whole_number("the row of a phase", row), weights) for row, weights in pairs]


def period_counts(weights: Weights) -> dict[str, int]:
    """Turn weights into integers that sum to a period: largest remainders, ties by name, at least 1 each.

    >>> period_counts({"a": 1, "b": 1, "c": 1})
    {'a': 21846, 'b': 21845, 'c': 21845}
    """
    checked = {str(name): check_real_number(f"the weight of {name}", weight) for name, weight in weights.items()}
    exact = {name: Fraction(weight) for name, weight in sorted(checked.items()) if weight}
    if not exact:
        raise UsageError("a mixture needs a source with a weight above 0")
    total = sum(exact.values())
    shares = {name: weight * PERIOD / total for name, weight in exact.items()}
    for name, share in shares.items():
        if share < Fraction(1, 2):
            raise UsageError(
                f"the weight of {name} is {float(share / PERIOD):.2g} of all, less than half a row in {PERIOD:,}",
                help="use a larger weight, or remove the source",
                source=name,
            )
    return round_by_largest_remainders(shares, least=1)


def round_by_largest_remainders(shares: Mapping[str, Fraction], least: int = 0) -> dict[str, int]:
    """Round shares to integers with the same sum, each less than 1 away; ties by name.

    >>> round_by_largest_remainders({"a": Fraction(1, 2), "b": Fraction(5, 4), "c": Fraction(5, 4)})
    {'a': 1, 'b': 1, 'c': 1}
    """
    counts = {name: max(least, math.floor(share)) for name, share in shares.items()}
    missing = int(sum(shares.values())) - sum(counts.values())
    for name in sorted(counts, key=lambda name: (counts[name] - shares[name], name))[: max(missing, 0)]:
        counts[name] += 1
    # Shares below `least` were rounded up. The largest count pays for them: it loses the smallest part of its share.
    for _ in range(-missing):
        counts[max(counts, key=lambda name: (counts[name], name))] -= 1
    return counts


@kernel
def schedule(
    counts: NDArray[np.int64],
    first_slot: int,
    drawn: NDArray[np.int64],
    slot_sources: NDArray[np.integer],
    slot_draws: NDArray[np.integer],
) -> None:
    """Fill the slots from `first_slot` on; `drawn` of each source came before, and is advanced to the end.

    Draw k of a source with count c may come in slots floor(kN/c) to ceil((k+1)N/c) - 1, where N is the sum of all
    counts: earliest deadline first. `opens` and `closes` are these bounds for the next draw of each source.
    """
    total = 0
    for source in range(len(counts)):
        total += counts[source]
    opens, closes = np.empty(len(counts), np.int64), np.empty(len(counts), np.int64)
    for source in range(len(counts)):
        count, draw = counts[source], drawn[source]
        opens[source] = draw * total // count if draw < count else total
        closes[source] = ((draw + 1) * total + count - 1) // count if draw < count else total
    for index in range(len(slot_sources)):
        slot = first_slot + index
        chosen = -1
        for source in range(len(counts)):
            if opens[source] <= slot and (chosen < 0 or closes[source] < closes[chosen]):
                chosen = source
        slot_sources[index] = chosen
        slot_draws[index] = drawn[chosen]
        drawn[chosen] += 1
        count, draw = counts[chosen], drawn[chosen]
        if draw < count:
            opens[chosen] = draw * total // count
            closes[chosen] = ((draw + 1) * total + count - 1) // count
        else:
            opens[chosen] = total


@kernel
def _assign(
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    drawn_before: NDArray[np.int64],
    slot_sources: NDArray[np.integer],
    slot_draws: NDArray[np.int32],
    sources: NDArray[np.int64],
    draws: NDArray[np.int64],
) -> None:
    period = slot_sources.shape[1]
    for number in range(len(rows)):
        row = rows[number]
        phase = len(starts) - 1
        while starts[phase] > row:
            phase -= 1
        periods = (row - starts[phase]) // period
        slot = row - starts[phase] - periods * period
        source = slot_sources[phase, slot]
        sources[number] = source
        draws[number] = drawn_before[phase, source] + periods * counts[phase, source] + slot_draws[phase, slot]


class Interleaving:
    """The positions of the records of several sequences in the interleaved one.

    >>> order = Interleaving([4, 2])
    >>> order.borders(3).tolist()
    [[0, 0], [2, 1], [4, 2]]
    >>> order.sources(3, [2, 1], 3).tolist()
    [0, 0, 1]
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self.num_records = int(self.counts.sum())
        if self.num_records > MAX_RECORDS:
            raise UsageError(
                f"{self.num_records:,} records cannot be interleaved, at most {MAX_RECORDS:,}",
                help="set interleave: false; streams mix the sources while they read",
            )

    def borders(self, step: int) -> NDArray[np.int64]:
        """Count the records of each source that come before record 0, `step`, 2 `step`, …, and before the end."""
        drawn = np.zeros(len(self.counts), dtype=np.int64)
        borders = [drawn.copy()]
        for first in range(0, self.num_records, step):
            self._advance(first, drawn, min(step, self.num_records - first))
            borders.append(drawn.copy())
        return np.array(borders)

    def sources(self, first: int, drawn: Sequence[int] | NDArray[np.int64], num_records: int) -> NDArray[np.int32]:
        """Return the source number of each record from `first` on; `drawn` of each source come before it."""
        return self._advance(first, np.array(drawn, dtype=np.int64), num_records)

    def _advance(self, first: int, drawn: NDArray[np.int64], num_records: int) -> NDArray[np.int32]:
        sources, draws = np.empty(num_records, dtype=np.int32), np.empty(num_records, dtype=np.int64)
        schedule(self.counts, first, drawn, sources, draws)
        return sources


@dataclass(frozen=True, slots=True)
class SourceShare:
    """The share of one source in a mix. All numbers are in the unit of the mix, rows or tokens."""

    amount: int
    """How much the mix takes."""
    available: int
    """How much the source has, in one epoch."""
    limit: int
    """How much the source has in `max_epochs`."""

    @property
    def whole_epochs(self) -> int:
        """The number of complete passes over the source."""
        return self.amount // self.available if self.available else 0

    @property
    def rest(self) -> int:
        """How much the mix takes of one more epoch."""
        return self.amount - self.whole_epochs * self.available

    def count_rows_to_take(self, reached: NDArray[np.int64]) -> int:
        """Count the records of one more epoch to take: as many as come closest to `rest`.

        `reached[k]` is the sum over the first k records, with `reached[0]` = 0. Records are whole, so the sum may
        exceed `rest`, but never the limit.

        >>> SourceShare(5, 30, 30).count_rows_to_take(np.array([0, 3, 6, 9]))
        2
        """
        count = int(np.searchsorted(reached, self.rest))
        if count == len(reached) or (count and reached[count] - self.rest > self.rest - reached[count - 1]):
            count -= 1
        while count and reached[count] > self.limit - self.whole_epochs * self.available:
            count -= 1
        return count


def plan_shares(
    weights: Mapping[str, float], available: Mapping[str, int], *, size: int, by: str, max_epochs: float
) -> dict[str, SourceShare]:
    """Compute the share of each source. `by` is the unit in messages.

    Raises `UsageError` if a source has too little, with the missing amount and a size that would work.
    """
    exact = {name: Fraction(check_positive_number(f"the weight of {name}", weight)) for name, weight in weights.items()}
    total = sum(exact.values())
    amounts = round_by_largest_remainders({name: size * weight / total for name, weight in exact.items()})
    # The decimal number that the user wrote is meant: as a float, 0.29 times 100 is 28.999999999999996.
    epochs = Fraction(check_positive_number("max_epochs", max_epochs)).limit_denominator(10**6)
    limits = {name: int(epochs * available[name]) for name in weights}
    short = [name for name, limit in limits.items() if amounts[name] > limit]
    if short:
        worst = max(short, key=lambda name: amounts[name] / max(limits[name], 1))
        passes = "1 epoch" if max_epochs == 1 else f"{max_epochs:g} epochs"
        shortages = "; ".join(
            f"{name}: {amounts[name]:,} {by} are needed, but it has {limits[name]:,} in {passes}, "
            f"{amounts[name] - limits[name]:,} short"
            for name in short
        )
        possible = int(limits[worst] * total / exact[worst])
        raise UsageError(
            f"mix: {shortages}",
            help=f"choose a size of at most {possible:,}, lower the weight of {worst}, or raise max_epochs",
        )
    return {name: SourceShare(amounts[name], available[name], limits[name]) for name in weights}


def plan_epochs(epochs: Mapping[str, float], available: Mapping[str, int]) -> dict[str, SourceShare]:
    """Compute the share of each source from how often it is taken.

    >>> plan_epochs({"code": 2.5}, {"code": 10})
    {'code': SourceShare(amount=25, available=10, limit=25)}
    """
    shares = {}
    for name, count in epochs.items():
        exact = Fraction(check_positive_number(f"the epochs of {name}", count)).limit_denominator(10**6)
        amount = round(exact * available[name])
        shares[name] = SourceShare(amount, available[name], amount)
    return shares
