"""The units that have come to the barrier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.splits import TRAIN
from gristmill.pipeline import fingerprint
from gristmill.pipeline.barriers import stored_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.pipeline.legs import UnitWork
    from gristmill.pipeline.stored import StoredInput
    from gristmill.pipeline.work import PartResult


@dataclass(frozen=True, slots=True)
class Arrived:
    """A unit that has come to the barrier, and the parts with its documents."""

    unit: UnitWork
    inputs: tuple[StoredInput, ...]
    is_against: bool = False
    is_held_out: bool = False
    """Of a unit with both, documents for training and others, two arrive."""

    @property
    def is_fixed(self) -> bool:
        """Its documents always stay."""
        return self.is_against or self.is_held_out

    @property
    def fingerprint(self) -> str:
        return fingerprint.of(self.unit.fingerprint, "held out") if self.is_held_out else self.unit.fingerprint

    @property
    def num_rows(self) -> int:
        return sum(stored.num_rows for stored in self.inputs)


def arrived(units: Sequence[UnitWork], results: Iterable[PartResult], *, is_against: bool = False) -> list[Arrived]:
    """The units that have documents."""
    found = []
    for unit, result in zip(units, results, strict=True):
        stored = stored_inputs(result)
        for is_held_out in (True, False):
            inputs = tuple(one for one in stored if (one.split != TRAIN) == is_held_out)
            found.append(Arrived(unit, inputs, is_against, is_held_out))
    return [some for some in found if some.num_rows]
