"""The barriers of `limit` and of `split` by numbers: how many records of each unit are meant depends on all units.

A limit is divided among the units of a source, in their order. For a split each unit tells its smallest keys, as many
as the step can need, and the parent merges them into two bounds; the next stage assigns records by these bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, list_training_inputs
from gristmill.pipeline.barriers.exchange import Exchange, Part
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stored import WholeRecords
from gristmill.steps.sampling import OVER_LIMIT, AssignSplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.pipeline.stages.stage_context import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.steps.sampling import KeepStage, Limit, Split, SplitByCount
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class FirstRows(WholeRecords):
    """The first rows of a stored stream; the other rows are dropped as `over_limit`."""

    stored: StoredInput
    num_kept: int

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count the rows over the limit, if `num_records` were read."""
        return {OVER_LIMIT: self.num_rows - num_records} if num_records < self.num_rows else {}

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the rows that are kept."""
        num_left = self.num_kept
        for batch in self.stored.batches(root, seed) if num_left else ():
            if num_left > 0:  # the stream is read to its end, which tells whether it is damaged
                yield batch.slice(0, num_left)
            num_left -= batch.num_rows

    def dropped_batches(self, root: Location, seed: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the rows over the limit, with their reason."""
        num_left = self.num_kept
        for batch in self.stored.batches(root, seed):
            yield OVER_LIMIT, batch.slice(min(max(num_left, 0), batch.num_rows))
            num_left -= batch.num_rows


@dataclass(frozen=True, slots=True)
class LimitBarrier:
    """Keeps the first records of each source; splits that are not limited stay whole."""

    step: Limit

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:  # noqa: ARG002
        units = {source.name: self._limit_units(source) for source in sources}
        return BarrierOutcome(units=units, entry_account=self.step.name)

    def _limit_units(self, source: BarrierSource) -> Iterator[StageUnit]:
        """Make the same units, each with its share of the limit."""
        splits = sorted({file.split for result in source.results for file in result.split_files})
        shares = {
            split: iter(
                self.step.shares(
                    sum(file.rows for file in result.split_files if file.split == split) for result in source.results
                )
            )
            for split in splits
            if self.step.applies_to_split(split)
        }
        for unit, result in source.unit_results():
            share_by_split = {split: next(unit_shares) for split, unit_shares in shares.items()}
            if result.split_files:
                name = fingerprint.of(unit.fingerprint, "limit", share_by_split)
                yield replace(unit, fingerprint=name, inputs=tuple(_take_first(result, share_by_split)))


@dataclass(frozen=True, slots=True)
class KeepBarrier:
    """Passes all records on as they are: the stage has ended only so that its output can be kept."""

    step: KeepStage

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:  # noqa: ARG002
        return BarrierOutcome(units={source.name: _pass_units(source) for source in sources}, entry_account=None)


def _take_first(result: SliceResult, share_by_split: Mapping[str, int]) -> Iterator[StoredInput | FirstRows]:
    """Select the first rows of a unit's files, `share_by_split` in all of each limited split."""
    num_left = dict(share_by_split)
    for stored in list_stored_inputs(result):
        if stored.split not in num_left:
            yield stored
            continue
        num_kept = min(num_left[stored.split], stored.num_rows)
        num_left[stored.split] -= num_kept
        yield FirstRows(stored, num_kept)


def find_smallest_keys(split: Split, seed: int, partition: Partition) -> dict[str, Any]:
    """Find the smallest keys of a unit's training records, and the number of these records."""
    keys = [split.keys(batch, seed) for _, batch in partition.batches()]
    return {"smallest": split.smallest(keys), "num_records": sum(map(len, keys))}


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
    units = [(unit, list_training_inputs(result)) for source in sources for unit, result in source.unit_results()]
    parts = [
        (fingerprint.of(unit.fingerprint, "keys", msgspec.to_builtins(split)), Part(number, inputs=tuple(inputs)))
        for number, (unit, inputs) in enumerate(units)
        if inputs
    ]
    results = Exchange(run, "split").run(partial(find_smallest_keys, split, run.context.seed), parts, "keys")
    smallest = split.smallest(np.array(keys, dtype=np.uint64) for keys in results.numbers("smallest"))
    return split.bounds(smallest, sum(results.counts("num_records")))
