"""The barrier of `split` by numbers: the smallest keys of all training records decide which ones are held out.

Each unit tells its smallest keys, as many as the step can need; the parent merges them into two bounds. The records
are assigned in the next stage, by a local step that knows the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, list_training_inputs
from gristmill.pipeline.planning import fingerprint
from gristmill.steps.split import AssignSplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.steps.split import Split, SplitByCount


class SmallestKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest keys of a unit's training records, and the number of these records."""

    smallest: list[int]
    num_records: int


@dataclass(frozen=True, slots=True)
class SmallestKeysTask:
    """A task that finds the smallest keys of one unit."""

    split: Split
    inputs: tuple[StoredInput, ...]


def run_smallest_keys(task: Task, context: Context) -> SmallestKeys:
    """Run a `SmallestKeysTask`; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    payload: SmallestKeysTask = task.payload
    split = payload.split
    batches = [batch for stored_input in payload.inputs for batch in stored_input.batches(stage.work)]
    smallest = split.smallest(split.keys(batch, stage.seed) for batch in batches)
    return SmallestKeys(smallest=smallest.tolist(), num_records=sum(batch.num_rows for batch in batches))


@dataclass(frozen=True, slots=True)
class SplitBarrier:
    """Finds the bounds of a `split` over all sources together, and passes every record on."""

    step: SplitByCount

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        split = self.step.split
        assign = AssignSplit(split=split, bounds=_find_bounds(split, sources, run))
        units = {source.name: _pass_units(source) for source in sources}
        # `assign` accounts for the records under the name of the step.
        return BarrierOutcome(units=units, entry_account=None, prepended_steps=(assign,))


def _pass_units(source: BarrierSource) -> Iterator[StageUnit]:
    for unit, result in source.unit_results():
        if result.split_files:
            yield replace(unit, inputs=tuple(list_stored_inputs(result)))


def _find_bounds(split: Split, sources: Sequence[BarrierSource], run: BarrierRun) -> tuple[int, int]:
    tasks = [
        Task(
            fingerprint.of(unit.fingerprint, "keys", msgspec.to_builtins(split)),
            SmallestKeysTask(split, inputs),
        )
        for source in sources
        for unit, result in source.unit_results()
        if (inputs := tuple(list_training_inputs(result)))
    ]
    results = run.runner.run_missing(run_smallest_keys, run.context, tasks, SmallestKeys, "split: keys")
    smallest = split.smallest(np.array(result.smallest, dtype=np.uint64) for result in results)
    return split.bounds(smallest, sum(result.num_records for result in results))
