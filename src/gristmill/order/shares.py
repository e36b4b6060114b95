"""How much a mix takes from each source: the arithmetic of `gristmill mix` and of the step `mix`.

The size is divided by largest remainders, so that the shares sum to it. Each source gives whole epochs first, then a
part of one more, as close to its share as whole records allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.numbers import check_positive_number
from gristmill.order.mixture import round_by_largest_remainders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


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
