"""The units whose documents a `deduplicate` compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import list_stored_inputs
from gristmill.pipeline.planning import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.pipeline.stages.slice_task import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.pipeline.stages.unit_tasks import StageUnit


@dataclass(frozen=True, slots=True)
class BarrierUnit:
    """A unit at the barrier: its documents for training, or its held-out ones.

    A unit that has both is two barrier units, because held-out documents are never removed.
    """

    unit: StageUnit
    inputs: tuple[StoredInput, ...]
    is_against: bool = False
    """The documents come from the files of `against`."""
    is_held_out: bool = False
    """The documents belong to another split than training."""

    @property
    def is_reference(self) -> bool:
        """Whether its documents always stay."""
        return self.is_against or self.is_held_out

    @property
    def fingerprint(self) -> str:
        return fingerprint.of(self.unit.fingerprint, "held out") if self.is_held_out else self.unit.fingerprint

    @property
    def num_rows(self) -> int:
        return sum(stored_input.num_rows for stored_input in self.inputs)


def collect_barrier_units(
    unit_results: Iterable[tuple[StageUnit, SliceResult]], *, is_against: bool = False
) -> Iterator[BarrierUnit]:
    """Collect the units that have documents, held-out ones first."""
    for unit, result in unit_results:
        stored_inputs = list_stored_inputs(result)
        for is_held_out in (True, False):
            inputs = tuple(
                stored_input for stored_input in stored_inputs if (stored_input.split != TRAIN) == is_held_out
            )
            barrier_unit = BarrierUnit(unit, inputs, is_against, is_held_out)
            if barrier_unit.num_rows:
                yield barrier_unit
