"""The units that have come to the barrier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    is_fixed: bool = False
    """It is of `against`."""

    @property
    def num_rows(self) -> int:
        return sum(stored.num_rows for stored in self.inputs)


def arrived(units: Sequence[UnitWork], results: Iterable[PartResult], *, is_fixed: bool = False) -> list[Arrived]:
    """The units that have documents."""
    found = [Arrived(unit, tuple(stored_inputs(result)), is_fixed) for unit, result in zip(units, results, strict=True)]
    return [some for some in found if some.num_rows]
