"""The mixed lane: the training records of all sources interleaved in `train/mixed/`, after the last stage.

Each source keeps its own units, books and packed rows to the end; these wait in the work folder, epoch after epoch.
Then every unit of the lane reads the next rows of each source, as many as its share says (`order.interleaving`). Cost:
one more pass over the training records; a worker holds one block of about 4 MiB at a time.

Packing the documents that units have left over: the last shards of a source (`packing`).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.engine.tasks import Task
from gristmill.order.mixture import Interleaving
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.join import JoinTask, RowCursor, interleave_rows, run_join
from gristmill.pipeline.stages.outputs.unit_output import choose_shard_output
from gristmill.pipeline.stages.runner import StageResults
from gristmill.pipeline.stages.stage_context import SliceResult, SourceStage
from gristmill.pipeline.stages.stored import StoredInput, WholeRecords
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.shards.manifest import MIXED
from gristmill.shards.stored_files import MixedShare
from gristmill.shards.token_rows import is_masked, shard_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.split_files import SplitFile
    from gristmill.pipeline.stages.outputs.unit_output import PackedRows
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.shards.stored_files import StoredFile
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Consecutive rows of an Arrow stream."""

    file: StoredFile
    first: int
    stop: int

    def batches(self, root: Location) -> Iterator[pa.RecordBatch]:
        """Read the rows, as slices of the stream's batches."""
        start = 0
        for batch in StoredInput(self.file, self.stop).batches(root):
            first, stop = max(self.first - start, 0), min(self.stop - start, batch.num_rows)
            if first < stop:
                yield batch.slice(first, stop - first)
            start += batch.num_rows


@dataclass(frozen=True, slots=True)
class StoredInterleaving(WholeRecords):
    """Consecutive rows of the lane in which all sources are interleaved."""

    rows: tuple[tuple[StoredRows, ...], ...]
    """Rows of each source, in their order."""
    counts: tuple[int, ...]
    """Rows of each source in the whole lane."""
    first: int
    """The number of the first row in the lane."""
    num_drawn: tuple[int, ...]
    """Rows of each source before the first row."""
    block_rows: int

    @property
    def num_rows(self) -> int:
        return sum(rows.stop - rows.first for stored_rows in self.rows for rows in stored_rows)

    def batches(self, root: Location, seed: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Read the rows, interleaved a block at a time."""
        sources = Interleaving(self.counts).sources(self.first, self.num_drawn, self.num_rows)
        streams = [_chain_batches(root, stored_rows) for stored_rows in self.rows]
        cursors = [RowCursor(stream) for stream in streams]
        for first in range(0, self.num_rows, self.block_rows):
            yield interleave_rows(sources[first : first + self.block_rows], cursors)
        for stream in streams:  # their rows are used up, but their ends tell whether they are damaged
            deque(stream, maxlen=0)


def _chain_batches(root: Location, files: tuple[StoredRows, ...]) -> Iterator[pa.RecordBatch]:
    for rows in files:
        yield from rows.batches(root)


@dataclass(frozen=True, slots=True)
class MixedLane:
    """The lane after it was written."""

    units: list[StageUnit]
    results: Iterable[SliceResult]
    shares: dict[str, MixedShare]
    """What the lane holds of each source."""


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """The rows of one source in their order."""

    files: list[SplitFile]

    @property
    def num_rows(self) -> int:
        return sum(file.rows for file in self.files)

    def between(self, first: int, stop: int) -> Iterator[StoredRows]:
        """Find the files that hold these rows of the source, and which of their own rows they are."""
        ends = np.cumsum([file.rows for file in self.files])
        for number in range(int(np.searchsorted(ends, first, side="right")), len(self.files)):
            file, start = self.files[number], int(ends[number]) - self.files[number].rows
            if start >= stop:
                return
            yield StoredRows(file.data, max(first - start, 0), min(stop - start, file.rows))


def write_mixed_lane(
    plan: Plan,
    runner: StageRunner,
    stage: StageContext,
    sources: Mapping[str, tuple[Collection[StageUnit], Iterable[SliceResult]]],
) -> MixedLane:
    """Interleave the training records of all sources, which their last units hold back, and write them."""
    sequences = {
        name: _SourceRows([file for result in results for file in result.held_files])
        for name, (_, results) in sources.items()
    }
    sequences = {name: sequence for name, sequence in sequences.items() if sequence.num_rows}
    order = Interleaving([sequence.num_rows for sequence in sequences.values()])
    num_bytes = sum(sum(file.data_blocks) for sequence in sequences.values() for file in sequence.files)
    unit_bytes = plan.recipe.unit_scale * plan.layout.unit_bytes
    unit_rows = -(-order.num_records // max(1, -(-num_bytes // unit_bytes))) or 1
    block_rows = max(1, order.num_records * plan.layout.cell_bytes // max(num_bytes, 1))
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
    shares = {name: _measure_share(sequence.files, plan) for name, sequence in sequences.items()}
    return MixedLane(units, StageResults(runner, units), shares)


def _make_lane_context(plan: Plan, stage: StageContext) -> StageContext:
    """Make the context of a stage that writes rows as they are."""
    first = plan.sources[0]
    row_length = plan.pack.row_length if plan.pack is not None else None
    schema = shard_schema(first.output_schema, row_length)
    lane_stage = SourceStage(first.read, first.schema, (), choose_shard_output(plan.write, schema), entry_account=None)
    return replace(stage, sources={MIXED: lane_stage}, keep_dropped=None)


def _measure_share(files: Sequence[SplitFile], plan: Plan) -> MixedShare:
    count: Counter[str] = Counter()
    for file in files:
        count.update(rows=file.rows, tokens=file.tokens, trained_tokens=file.trained_tokens)
    has_masks = is_masked(plan.shard_schema)
    return MixedShare(
        rows=count["rows"],
        tokens=count["tokens"] or None,
        trained_tokens=count["trained_tokens"] if has_masks else msgspec.UNSET,
    )


_GROUP_BYTES = 64 << 20
"""One task packs about this many bytes of leftovers."""


def pack_leftovers(
    runner: StageRunner,
    stage: StageContext,
    output: PackedRows,
    units: Iterable[StageUnit],
    results: Iterable[SliceResult],
) -> tuple[list[StageUnit], Counter[str]]:
    """Pack the leftovers of a source's units into more units, and count what they add to the account of `pack`.

    To the runner leftovers are slices that wait to be joined, in a stage that packs them with `output`.
    """
    leftovers = [(unit, result.leftovers) for unit, result in zip(units, results, strict=True) if result.leftovers]
    if not leftovers:
        return [], Counter()
    source = leftovers[0][0].source
    leftover_units, tasks = [], []
    for group in _group_leftovers(leftovers):
        name = fingerprint.of([unit.fingerprint for unit, _ in group], "tail")
        unit = StageUnit(source, name, (), group[0][0].epoch)
        leftover_units.append(unit)
        if runner.find_result(unit) is None:
            slices = tuple(SliceResult(split_files=files, books=[]) for _, files in group)
            tasks.append(Task(unit.fingerprint, JoinTask(source.name, slices, unit.stem)))
    leftover_stage = replace(stage, sources={source.name: replace(stage.sources[source.name], output=output)})
    runner.run_tasks(run_join, leftover_stage, tasks, "packing leftovers")
    counters: Counter[str] = Counter()
    for result in StageResults(runner, leftover_units):
        counters.update(result.books[-1].counters)
    return leftover_units, counters


def _group_leftovers(
    leftovers: Sequence[tuple[StageUnit, list[SplitFile]]],
) -> Iterator[list[tuple[StageUnit, list[SplitFile]]]]:
    """Group consecutive units of one epoch with about `_GROUP_BYTES` of leftovers."""
    group: list[tuple[StageUnit, list[SplitFile]]] = []
    num_bytes = 0
    for unit, files in leftovers:
        # Rows must not hold documents of two epochs: an epoch is complete before the next one begins.
        if group and group[-1][0].epoch != unit.epoch:
            yield group
            group, num_bytes = [], 0
        group.append((unit, files))
        num_bytes += sum(file.data.bytes for file in files)
        if num_bytes >= _GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group
