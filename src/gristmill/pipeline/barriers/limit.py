"""The barrier of `limit`: its number is shared out over the units of a source, in their order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs
from gristmill.pipeline.planning import fingerprint
from gristmill.steps.limit import OVER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.stages.slices.slice_task import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.steps.limit import Limit
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a stored stream; the other rows are dropped as `over_limit`."""

    stored: StoredInput
    num_kept: int

    is_copy: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, int]] = {}

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count the rows over the limit, if `num_records` were read."""
        return {OVER_LIMIT: self.num_rows - num_records} if num_records < self.num_rows else {}

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the rows that are kept, and no batch behind them."""
        num_left = self.num_kept
        for batch in self.stored.batches(root, seed) if num_left else ():
            yield batch.slice(0, num_left)
            num_left -= batch.num_rows
            if num_left <= 0:
                return


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
            split: iter(self.step.shares(_count_rows(split, result) for result in source.results))
            for split in splits
            if self.step.applies_to_split(split)
        }
        for unit, result in source.unit_results():
            share_by_split = {split: next(unit_shares) for split, unit_shares in shares.items()}
            if result.split_files:
                name = fingerprint.of(unit.fingerprint, "limit", share_by_split)
                yield replace(unit, fingerprint=name, inputs=tuple(_take_first(result, share_by_split)))


def _count_rows(split: str, result: SliceResult) -> int:
    return sum(file.rows for file in result.split_files if file.split == split)


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
