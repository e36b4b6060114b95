"""The training records of all sources as one lane, `train/mixed/`, after everything else was done to them.

Each source keeps its own units, books and packed rows to the end; these wait in the work folder, epoch after epoch.
Then every unit of the lane takes the next rows of each source, as many as its share says (`order.interleaving`). Cost:
one more pass over what is for training; a worker holds one block of about 4 MiB at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.order.interleaving import Interleaving
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import UNIT_BYTES
from gristmill.pipeline.stages.runner import StageResults, StageUnit
from gristmill.pipeline.stages.slice_task import SourceStage
from gristmill.pipeline.stages.stored import StoredInterleaving, StoredRows
from gristmill.shards.manifest import MIXED, MixedShare
from gristmill.shards.token_rows import is_masked, shard_schema
from gristmill.steps.read import CELL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.sink import SplitFile
    from gristmill.pipeline.stages.slice_task import SliceResult, StageContext


@dataclass(frozen=True, slots=True)
class MixedLane:
    """The finished lane."""

    units: list[StageUnit]
    results: Iterable[SliceResult]
    shares: dict[str, MixedShare]
    """By source."""


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """The rows of one source in their order."""

    parts: list[SplitFile]

    @property
    def num_rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def between(self, first: int, stop: int) -> Iterator[StoredRows]:
        ends = np.cumsum([part.rows for part in self.parts])
        for number in range(int(np.searchsorted(ends, first, side="right")), len(self.parts)):
            part, start = self.parts[number], int(ends[number]) - self.parts[number].rows
            if start >= stop:
                return
            yield StoredRows(part.data.path, max(first - start, 0), min(stop - start, part.rows))


def write_mixed_lane(
    plan: Plan,
    runner: StageRunner,
    stage: StageContext,
    sources: Mapping[str, tuple[Sequence[StageUnit], Iterable[SliceResult]]],
) -> MixedLane:
    """Interleave what the last units of each source hold for training, and write it."""
    sequences = {
        name: _SourceRows([part for result in results for part in result.held_files])
        for name, (_, results) in sources.items()
    }
    sequences = {name: sequence for name, sequence in sequences.items() if sequence.num_rows}
    order = Interleaving([sequence.num_rows for sequence in sequences.values()])
    num_bytes = sum(sum(part.data_blocks) for sequence in sequences.values() for part in sequence.parts)
    unit_rows = -(-order.num_records // max(1, -(-num_bytes // UNIT_BYTES))) or 1
    block_rows = max(1, order.num_records * CELL_BYTES // max(num_bytes, 1))
    whole = fingerprint.of([[unit.fingerprint for unit in units] for units, _ in sources.values()], MIXED)
    source = replace(plan.sources[0], name=MIXED, files=())
    borders = order.borders(unit_rows)
    units = []
    for number, (drawn, next_drawn) in enumerate(pairwise(borders)):
        rows = [
            tuple(sequence.between(*between))
            for sequence, *between in zip(sequences.values(), drawn.tolist(), next_drawn.tolist(), strict=True)
        ]
        stored = StoredInterleaving(
            tuple(rows), tuple(order.counts.tolist()), number * unit_rows, tuple(drawn.tolist()), block_rows
        )
        units.append(StageUnit(source, fingerprint.of(whole, unit_rows, number), (stored,)))
    runner.run(_make_lane_context(plan, stage), units, "interleaving")
    shares = {name: _measure_share(sequence.parts, plan) for name, sequence in sequences.items()}
    return MixedLane(units, StageResults(runner, units), shares)


def _make_lane_context(plan: Plan, stage: StageContext) -> StageContext:
    """Nothing is done to the rows but writing them."""
    first = plan.sources[0]
    row_length = plan.pack.row_length if plan.pack is not None else None
    schema = shard_schema(first.output_schema, row_length)
    leg = SourceStage(first.read, first.schema, (), schema, plan.write, entry_account=None)
    return replace(stage, sources={MIXED: leg}, keep_dropped=None)


def _measure_share(parts: Sequence[SplitFile], plan: Plan) -> MixedShare:
    count: Counter[str] = Counter()
    for part in parts:
        count.update(rows=part.rows, tokens=part.tokens, trained_tokens=part.trained_tokens)
    has_masks = is_masked(plan.shard_schema)
    return MixedShare(
        rows=count["rows"],
        tokens=count["tokens"] or None,
        trained_tokens=count["trained_tokens"] if has_masks else msgspec.UNSET,
    )
