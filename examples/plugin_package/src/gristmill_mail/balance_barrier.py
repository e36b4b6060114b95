"""The barrier of `balance`: it counts the records of all sources, then takes the first ones of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, list_training_inputs
from gristmill.pipeline.barriers.limit_and_split import FirstRows
from gristmill.pipeline.planning import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.stages.runner import StageUnit
    from gristmill_mail.balance import Balance


@dataclass(frozen=True, slots=True)
class BalanceBarrier:
    """Gives every source as many training records as the smallest one has."""

    step: Balance

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:  # noqa: ARG002
        max_records = min(_count_training_records(source) for source in sources)
        units = {source.name: list(_take_first(source, max_records)) for source in sources}
        return BarrierOutcome(units=units, entry_account=self.step.name)


def _count_training_records(source: BarrierSource) -> int:
    return sum(stored.num_rows for result in source.results for stored in list_training_inputs(result))


def _take_first(source: BarrierSource, max_records: int) -> Iterator[StageUnit]:
    num_left = max_records
    for unit, result in source.unit_results():
        # The fingerprint tells all that decides the unit's records: here, how many are left for it.
        name = fingerprint.of(unit.fingerprint, "balance", num_left)
        inputs = []
        for stored in list_stored_inputs(result):
            if stored.split == TRAIN:
                num_kept = min(num_left, stored.num_rows)
                inputs.append(FirstRows(stored, num_kept))
                num_left -= num_kept
            else:
                inputs.append(stored)
        if inputs:
            yield replace(unit, fingerprint=name, inputs=tuple(inputs))
