"""The units that have come to the barrier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import list_stored_inputs
from gristmill.pipeline.planning import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.pipeline.stages.runner import StageUnit
    from gristmill.pipeline.stages.slice_task import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput


@dataclass(frozen=True, slots=True)
class BarrierUnit:
    """A unit that has come to the barrier, and the parts with its documents."""

    unit: StageUnit
    inputs: tuple[StoredInput, ...]
    is_against: bool = False
    is_held_out: bool = False
    """Of a unit with both, documents for training and others, two arrive."""

    @property
    def is_reference(self) -> bool:
        """Its documents always stay."""
        return self.is_against or self.is_held_out

    @property
    def fingerprint(self) -> str:
        return fingerprint.of(self.unit.fingerprint, "held out") if self.is_held_out else self.unit.fingerprint

    @property
    def num_rows(self) -> int:
        return sum(stored.num_rows for stored in self.inputs)


def collect_barrier_units(
    units: Sequence[StageUnit], results: Iterable[SliceResult], *, is_against: bool = False
) -> list[BarrierUnit]:
    """The units that have documents."""
    found = []
    for unit, result in zip(units, results, strict=True):
        stored = list_stored_inputs(result)
        for is_held_out in (True, False):
            inputs = tuple(one for one in stored if (one.split != TRAIN) == is_held_out)
            found.append(BarrierUnit(unit, inputs, is_against, is_held_out))
    return [some for some in found if some.num_rows]
