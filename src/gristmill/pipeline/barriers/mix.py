"""The step `mix` between two legs: how much there is of each source, which of it goes on, and how often.

Records are taken in the order of their keys. Units count what they hold by ranges of keys; only in the one range where
a source's share ends are keys looked at one by one, in a second pass. So the parent holds 4,096 numbers a source,
however many records there are. Copies of a source are units of their own, of the next epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from gristmill.core.errors import UsageError
from gristmill.engine.tasks import Task
from gristmill.order.shares import plan_shares
from gristmill.pipeline.barriers.base import list_stored_inputs
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.runner import StageUnit
from gristmill.pipeline.stages.stored import StoredSelection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.order.shares import SourceShare
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.slice_task import SliceResult, StageContext
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.mix import Mix

_RANGE_BITS = 12
_SHIFT = np.uint64(64 - _RANGE_BITS)

T = TypeVar("T", bound=msgspec.Struct)

Units = list[tuple[StageUnit, tuple["StoredInput", ...]]]


class RangeAmounts(msgspec.Struct, frozen=True):
    """What a unit holds, by ranges of keys."""

    by_range: list[int]


class RangeKeys(msgspec.Struct, frozen=True):
    """The records of a unit in one range of keys."""

    keys: list[int]
    amounts: list[int]


@dataclass(frozen=True, slots=True)
class MixTask:
    """Count a unit, or look at one range of it."""

    mix: Mix
    inputs: tuple[StoredInput, ...]
    range_number: int | None


def run_mix(task: Task, context: Context) -> RangeAmounts | RangeKeys:
    """The function of these tasks; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    work: MixTask = task.payload
    found = [
        _measure_training_records(work.mix, batch, stage.seed)
        for stored in work.inputs
        for batch in stored.batches(stage.root)
    ]
    keys = np.concatenate([keys for keys, _ in found])
    amounts = np.concatenate([amounts for _, amounts in found])
    ranges = (keys >> _SHIFT).astype(np.int64)
    if work.range_number is None:
        by_range = np.zeros(1 << _RANGE_BITS, dtype=np.int64)
        np.add.at(by_range, ranges, amounts)
        return RangeAmounts(by_range.tolist())
    chosen = ranges == work.range_number
    return RangeKeys(keys[chosen].tolist(), amounts[chosen].tolist())


def _measure_training_records(mix: Mix, batch: object, seed: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    is_mixed = mix.is_mixed(batch)
    return mix.keys(batch, seed)[is_mixed], mix.amounts(batch)[is_mixed]


def mix_units(
    mix: Mix,
    runner: StageRunner,
    stage: StageContext,
    sources: Mapping[str, tuple[Sequence[StageUnit], Iterable[SliceResult]]],
) -> dict[str, list[StageUnit]]:
    """Units of the next leg, by source: whole epochs, then those of which a part is taken."""
    filled: dict[str, Units] = {
        name: [
            (unit, tuple(list_stored_inputs(result))) for unit, result in zip(*pair, strict=True) if result.split_files
        ]
        for name, pair in sources.items()
    }
    counted = _run_mix_tasks(mix, runner, stage, filled, dict.fromkeys(filled), RangeAmounts)
    by_range = {name: _sum_ranges(units) for name, units in counted.items()}
    available = {name: int(amounts.sum()) for name, amounts in by_range.items()}
    wanted = plan_shares(mix.weights, available, size=mix.size, by=mix.by, max_epochs=mix.max_epochs)
    # Where the share of a source ends: the first range that brings it there.
    ends = {name: int(np.searchsorted(np.cumsum(by_range[name]), wanted[name].rest)) for name in filled}
    looked_at = _run_mix_tasks(mix, runner, stage, filled, ends, RangeKeys)
    bounds = {}
    for name, amounts in by_range.items():
        before = int(amounts[: ends[name]].sum())
        bounds[name], taken = _find_bound(wanted[name], ends[name], before, looked_at[name])
        if not taken and not wanted[name].whole_epochs:
            raise UsageError(
                f"mix: of a size of {mix.size:,} {mix.by} nothing is left for {name}", help="choose a larger size"
            )
    return {
        name: list(_select_units(mix, units, wanted[name].whole_epochs, bounds[name])) for name, units in filled.items()
    }


def _sum_ranges(units: Iterable[RangeAmounts]) -> NDArray[np.int64]:
    total = np.zeros(1 << _RANGE_BITS, dtype=np.int64)
    for found in units:
        total += np.array(found.by_range)
    return total


def _run_mix_tasks(
    mix: Mix,
    runner: StageRunner,
    stage: StageContext,
    filled: dict[str, Units],
    ranges: Mapping[str, int | None],
    kind: type[T],
) -> dict[str, list[T]]:
    """What all units of each source say."""
    described = msgspec.to_builtins(mix)
    tasks = {
        name: [
            Task(fingerprint.of(unit.fingerprint, "mix", described, ranges[name]), MixTask(mix, inputs, ranges[name]))
            for unit, inputs in units
        ]
        for name, units in filled.items()
    }
    undone = [task for task in chain.from_iterable(tasks.values()) if runner.find_receipt(task.id, kind) is None]
    runner.run_tasks(run_mix, stage, undone, "mix: counting" if kind is RangeAmounts else "mix: choosing")
    return {
        name: [found for task in of_source if (found := runner.find_receipt(task.id, kind)) is not None]
        for name, of_source in tasks.items()
    }


def _find_bound(wanted: SourceShare, range_number: int, before: int, found: Sequence[RangeKeys]) -> tuple[int, int]:
    """Keys below it are taken once more, and how much that is; `before` lies in the ranges before this one."""
    keys = np.array([key for unit in found for key in unit.keys], dtype=np.uint64)
    amounts = np.array([amount for unit in found for amount in unit.amounts], dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    reached = np.concatenate([[before], before + np.cumsum(amounts[order])])
    count = wanted.count_rows_to_take(reached)
    bound = int(keys[order[count - 1]]) + 1 if count else range_number << int(_SHIFT)
    return bound, int(reached[count])


def _select_units(mix: Mix, units: Units, whole_epochs: int, bound: int) -> Iterator[StageUnit]:
    """Each unit as often as it is read; the last time only in part."""
    passes: list[int | None] = [*[None] * whole_epochs, *([bound] if bound or not whole_epochs else [])]
    for number, below in enumerate(passes):
        for unit, inputs in units:
            chosen = tuple(
                StoredSelection(stored.path, stored.num_rows, mix, below, is_copy=number > 0, source=unit.source.name)
                for stored in inputs
            )
            name = fingerprint.of(unit.fingerprint, "mix", number, below)
            yield StageUnit(unit.source, name, chosen, epoch=number)
