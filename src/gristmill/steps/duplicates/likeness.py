"""Whether two documents are alike: from their sketches where these are clear, else by their texts.

An estimate of n values has a standard deviation of sqrt(t(1-t)/n) at the threshold t: 0.038 for 108 values at 0.8.
Three of them away from the threshold the sketch decides; of pairs just at the border it is wrong about one in 700.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.steps.deduplicate import Deduplicate


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the sketches of some pairs say."""

    alike: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    """Their texts must be compared."""


def judge(step: Deduplicate, estimates: NDArray[np.float64]) -> Judgement:
    """By the estimated similarities of pairs."""
    nothing = np.zeros(len(estimates), dtype=bool)
    if step.verify == "off":
        return Judgement(~nothing, nothing)
    if step.verify == "signature":
        return Judgement(estimates >= step.threshold, nothing)
    margin = max(3 * math.sqrt(step.threshold * (1 - step.threshold) / (step.bands * step.rows)), 0.05)
    # Where no estimate can lie above the margin, none is believed.
    above = step.threshold + margin
    alike = estimates >= above if above < 1 else nothing
    return Judgement(alike, ~alike & (estimates > step.threshold - margin))
