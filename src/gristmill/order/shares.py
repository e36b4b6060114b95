"""How much a mix takes of each source: the arithmetic of `gristmill mix` and of the step `mix`.

The size is shared out by largest remainders, so that the shares sum to it. Of each source whole epochs are taken first,
then a part of one more, as near to the share as whole records allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.numbers import check_positive_number
from gristmill.order.mixture import largest_remainders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SourceShare:
    """Of one source, in the unit of the mix."""

    amount: int
    available: int
    limit: int
    """What is there in `max_epochs`."""

    @property
    def whole_epochs(self) -> int:
        return self.amount // self.available if self.available else 0

    @property
    def rest(self) -> int:
        """What is wanted of one more epoch."""
        return self.amount - self.whole_epochs * self.available

    def count_rows_to_take(self, reached: NDArray[np.int64]) -> int:
        """How many records of one more epoch to take, `reached` being 0 and then what each of them brings it to.

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
    """What is taken of each source; what is not there is refused, with what is missing and what would work."""
    exact = {name: Fraction(check_positive_number(f"the weight of {name}", weight)) for name, weight in weights.items()}
    total = sum(exact.values())
    amounts = largest_remainders({name: size * weight / total for name, weight in exact.items()})
    # 0.29 * 100 is 28.999999999999996: the number that was written is meant.
    epochs = Fraction(check_positive_number("max_epochs", max_epochs)).limit_denominator(10**6)
    limits = {name: int(epochs * available[name]) for name in weights}
    short = [name for name, limit in limits.items() if amounts[name] > limit]
    if short:
        worst = max(short, key=lambda name: amounts[name] / max(limits[name], 1))
        listed = "; ".join(
            f"{name}: {amounts[name]:,} {by} are wanted, {limits[name]:,} are there in {max_epochs:g} epochs, "
            f"{amounts[name] - limits[name]:,} short"
            for name in short
        )
        possible = int(limits[worst] * total / exact[worst])
        raise UsageError(
            f"mix: {listed}",
            help=f"take a size of at most {possible:,}, lower the weight of {worst}, or raise max_epochs",
        )
    return {name: SourceShare(amounts[name], available[name], limits[name]) for name in weights}
