"""The barrier of `mix`: how much there is of each source, which of its records pass, and how often.

Records pass in the order of their keys. A first pass counts each unit by 4,096 ranges of keys; a second one reads keys
one by one, only in the range where a source's share ends. So the parent holds 4,096 numbers for each source, however
many records there are. Copies of a source are separate units, in the next epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs
from gristmill.pipeline.barriers.exchange import Exchange, Part
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stored import StoredInput
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.steps.edit_columns import with_source
from gristmill.steps.mix import NOT_CHOSEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.order.mixture import SourceShare
    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.pipeline.barriers.record_files import Receipt
    from gristmill.shards.stored_files import StoredFile
    from gristmill.steps.mix import Mix
    from gristmill.storage.locations import Location


_RANGE_BITS = 12
_SHIFT = np.uint64(64 - _RANGE_BITS)

UnitInputs = list[tuple[StageUnit, tuple[StoredInput, ...]]]


@dataclass(frozen=True, slots=True)
class StoredSelection:
    """The records of an Arrow stream that a `mix` takes: all or some of them, perhaps not for the first time."""

    file: StoredFile
    num_rows: int
    mix: Mix
    key_bound: int | None
    """Records with smaller keys are taken; None: all."""
    is_copy: bool
    """The records were taken before: these are new ones, and only training records are copied."""
    source: str

    counters: ClassVar[Mapping[str, int]] = {}

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count the records that are not taken; those of a copy were counted the first time."""
        return {NOT_CHOSEN: self.num_rows - num_records} if num_records < self.num_rows and not self.is_copy else {}

    def batches(self, root: Location, seed: int) -> Iterator[pa.RecordBatch]:
        """Read the records that are taken."""
        for batch in StoredInput(self.file, self.num_rows).batches(root):
            selection = batch.filter(pa.array(self._find_taken(batch, seed)))
            yield with_source(selection, self.source) if self.mix.joins_sources else selection

    def dropped_batches(self, root: Location, seed: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the records that are not taken, with their reason; those of a copy were given the first time."""
        for batch in () if self.is_copy else StoredInput(self.file, self.num_rows).batches(root):
            yield NOT_CHOSEN, batch.filter(pa.array(~self._find_taken(batch, seed)))

    def _find_taken(self, batch: pa.RecordBatch, seed: int) -> NDArray[np.bool_]:
        is_mixed = self.mix.is_mixed(batch)
        is_taken = np.ones(batch.num_rows, dtype=np.bool_)
        if self.key_bound is not None and self.key_bound < 1 << 64:
            is_taken = self.mix.keys(batch, seed) < np.uint64(self.key_bound)
        return is_taken & is_mixed if self.is_copy else is_taken | ~is_mixed


def measure_unit(mix: Mix, seed: int, ranges: Mapping[str, int] | None, partition: Partition) -> dict[str, Any]:
    """Find how much a unit holds for training by range of keys; or, record by record, in one range of its source."""
    pairs = [_measure_training_records(mix, batch, seed) for _, batch in partition.batches()]
    keys = np.concatenate([keys for keys, _ in pairs])
    amounts = np.concatenate([amounts for _, amounts in pairs])
    in_range = (keys >> _SHIFT).astype(np.int64)
    if ranges is None:
        by_range = np.zeros(1 << _RANGE_BITS, dtype=np.int64)
        np.add.at(by_range, in_range, amounts)
        return {"by_range": by_range}
    is_wanted = in_range == ranges[partition.part.source]
    return {"keys": keys[is_wanted], "amounts": amounts[is_wanted]}


def _measure_training_records(
    mix: Mix, batch: pa.RecordBatch, seed: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    is_mixed = mix.is_mixed(batch)
    return mix.keys(batch, seed)[is_mixed], mix.amounts(batch)[is_mixed]


@dataclass(frozen=True, slots=True)
class MixBarrier:
    """Takes of each source its share of the mix, whole epochs first."""

    step: Mix

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        mix = self.step
        inputs: dict[str, UnitInputs] = {
            source.name: [
                (unit, tuple(list_stored_inputs(result)))
                for unit, result in source.unit_results()
                if result.split_files
            ]
            for source in sources
        }
        counted = self._measure(run, inputs, None, "counting")
        none = np.zeros(1 << _RANGE_BITS, dtype=np.int64)
        by_range = {
            name: sum((np.array(unit.numbers["by_range"]) for unit in units), none) for name, units in counted.items()
        }
        available = {name: int(amounts.sum()) for name, amounts in by_range.items()}
        shares = mix.plan_shares(available)
        # The share of a source ends in the first range that brings it there.
        last_ranges = {name: int(np.searchsorted(np.cumsum(by_range[name]), shares[name].rest)) for name in inputs}
        range_keys = self._measure(run, inputs, last_ranges, "choosing")
        units = {}
        for name, amounts in by_range.items():
            amount_before = int(amounts[: last_ranges[name]].sum())
            bound, amount = _find_bound(shares[name], last_ranges[name], amount_before, range_keys[name])
            if not amount and not shares[name].whole_epochs:
                raise UsageError(
                    f"mix: of {shares[name].amount:,} {mix.by} nothing is left for {name}",
                    help="choose a larger size, or more epochs",
                )
            units[name] = self._select_units(inputs[name], shares[name].whole_epochs, bound)
        return BarrierOutcome(units=units, entry_account=mix.name)

    def _measure(
        self, run: BarrierRun, inputs: Mapping[str, UnitInputs], ranges: Mapping[str, int] | None, desc: str
    ) -> dict[str, list[Receipt]]:
        """Measure all units, and give the results by source."""
        described = msgspec.to_builtins(self.step)
        parts = [
            (
                fingerprint.of(unit.fingerprint, "mix", described, None if ranges is None else ranges[name]),
                Part(number, source=name, inputs=stored_inputs),
            )
            for name, units in inputs.items()
            for number, (unit, stored_inputs) in enumerate(units)
        ]
        stage = partial(measure_unit, self.step, run.context.seed, ranges)
        receipts = iter(Exchange(run, "mix").run(stage, parts, desc).receipts)
        return {name: [next(receipts) for _ in units] for name, units in inputs.items()}

    def _select_units(self, units: UnitInputs, whole_epochs: int, bound: int) -> Iterator[StageUnit]:
        """Give each unit as often as it is read; the last time only the records below the bound."""
        passes: list[int | None] = [*[None] * whole_epochs, *([bound] if bound or not whole_epochs else [])]
        for number, key_bound in enumerate(passes):
            for unit, inputs in units:
                selection = tuple(
                    StoredSelection(
                        stored_input.file,
                        stored_input.num_rows,
                        self.step,
                        key_bound,
                        is_copy=number > 0,
                        source=unit.source.name,
                    )
                    for stored_input in inputs
                )
                name = fingerprint.of(unit.fingerprint, "mix", number, key_bound)
                yield StageUnit(unit.source, name, selection, epoch=number)


def _find_bound(share: SourceShare, range_number: int, amount_before: int, units: Sequence[Receipt]) -> tuple[int, int]:
    """Find the key below which records are taken once more, and the amount that they bring.

    `amount_before` is the amount in the ranges before this one.
    """
    keys = np.array([key for unit in units for key in unit.numbers["keys"]], dtype=np.uint64)
    amounts = np.array([amount for unit in units for amount in unit.numbers["amounts"]], dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    totals = np.concatenate([[amount_before], amount_before + np.cumsum(amounts[order])])
    count = share.count_rows_to_take(totals)
    bound = int(keys[order[count - 1]]) + 1 if count else range_number << int(_SHIFT)
    return bound, int(totals[count])
