"""What happens between two legs, when all records of the first have been seen.

All of these act on what is for training; other splits pass as they are. `limit` shares its number out over the units in
their order. `split` by numbers finds the smallest keys of all records.
`shuffle` deals every unit's records into buckets by their keys and sorts each bucket, which is a unit of the next leg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.splits import TRAIN
from gristmill.engine.tasks import Task
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.runner import StageUnit
from gristmill.pipeline.stages.sink import OutputStem, RecordSink, SplitFile
from gristmill.pipeline.stages.stored import StoredBlock, StoredBucket, StoredInput
from gristmill.pipeline.work_folder import WORK_FOLDER
from gristmill.shards.canonical import canonical_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.slice_task import SliceResult, StageContext
    from gristmill.steps.limit import Limit
    from gristmill.steps.shuffle import Shuffle
    from gristmill.steps.split import Split

BUCKET_BYTES = 64 << 20


def list_stored_inputs(result: SliceResult) -> list[StoredInput]:
    """What a unit of an earlier leg left, as input."""
    return [StoredInput(part.data.path, part.rows, part.split) for part in result.split_files]


def list_training_inputs(result: SliceResult) -> list[StoredInput]:
    """The part of it that is for training."""
    return [stored for stored in list_stored_inputs(result) if stored.split == TRAIN]


def apply_limit(limit: Limit, units: Sequence[StageUnit], results: Iterable[SliceResult]) -> list[StageUnit]:
    """The same units, each with its share of the number; splits that are not limited are as they were."""
    splits = sorted(
        {part.split for result in results for part in result.split_files if limit.applies_to_split(part.split)}
    )
    shares = {split: iter(limit.shares(_count_rows(split, result) for result in results)) for split in splits}
    limited = []
    for unit, result in zip(units, results, strict=True):
        left = {split: next(of_units) for split, of_units in shares.items()}
        if result.split_files:
            name = fingerprint.of(unit.fingerprint, "limit", left)
            limited.append(replace(unit, fingerprint=name, inputs=tuple(_take_first(result, left))))
    return limited


def _count_rows(split: str, result: SliceResult) -> int:
    return sum(part.rows for part in result.split_files if part.split == split)


def pass_split(units: Sequence[StageUnit], results: Iterable[SliceResult]) -> list[StageUnit]:
    """The same units with all their records."""
    return [
        replace(unit, inputs=tuple(list_stored_inputs(result)))
        for unit, result in zip(units, results, strict=True)
        if result.split_files
    ]


def _take_first(result: SliceResult, left: dict[str, int]) -> Iterator[StoredInput]:
    """What a unit gives, if so many records of a limited split may still come."""
    left = dict(left)
    for stored in list_stored_inputs(result):
        if stored.split in left:
            stored = replace(stored, max_rows=min(left[stored.split], stored.num_rows))  # noqa: PLW2901
            left[stored.split] -= stored.max_rows or 0
        yield stored


class SmallestKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest keys of a unit's records, and how many records there are."""

    smallest: list[int]
    num_records: int


@dataclass(frozen=True, slots=True)
class SmallestKeysTask:
    """Find the keys that a `split` by numbers needs."""

    split: Split
    inputs: tuple[StoredInput, ...]


def run_smallest_keys(task: Task, context: Context) -> SmallestKeys:
    """The function of these tasks; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    work: SmallestKeysTask = task.payload
    batches = [batch for stored in work.inputs for batch in stored.batches(stage.root)]
    smallest = work.split.smallest(work.split.keys(batch, stage.seed) for batch in batches)
    return SmallestKeys(smallest=smallest.tolist(), num_records=sum(batch.num_rows for batch in batches))


def find_split_bounds(
    split: Split, runner: StageRunner, stage: StageContext, units: Sequence[StageUnit], results: Iterable[SliceResult]
) -> tuple[int, int]:
    """The bounds for records of all sources together."""
    tasks = [
        Task(
            fingerprint.of(unit.fingerprint, "keys", msgspec.to_builtins(split)),
            SmallestKeysTask(split, inputs),
        )
        for unit, result in zip(units, results, strict=True)
        if (inputs := tuple(list_training_inputs(result)))
    ]
    runner.run_tasks(
        run_smallest_keys,
        stage,
        [task for task in tasks if runner.find_receipt(task.id, SmallestKeys) is None],
        "split: keys",
    )
    found = [keys for task in tasks if (keys := runner.find_receipt(task.id, SmallestKeys)) is not None]
    smallest = split.smallest(np.array(keys.smallest, dtype=np.uint64) for keys in found)
    return split.bounds(smallest, sum(keys.num_records for keys in found))


class ScatteredUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit's records by bucket: `buckets[i]` is the bucket of the i-th block of `part`."""

    part: SplitFile
    buckets: list[int]


@dataclass(frozen=True, slots=True)
class ScatterTask:
    """Deal one unit's records into buckets."""

    source: str
    shuffle: Shuffle
    inputs: tuple[StoredInput, ...]
    epoch: int
    num_buckets: int
    stem: str


def run_scatter(task: Task, context: Context) -> ScatteredUnit:
    """The function of these tasks; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    deal: ScatterTask = task.payload
    table = pa.Table.from_batches([batch for stored in deal.inputs for batch in stored.batches(stage.root)])
    batch = table.combine_chunks().to_batches()[0]
    buckets = deal.shuffle.buckets(deal.shuffle.keys(batch, stage.seed, deal.epoch), deal.num_buckets)
    order = np.argsort(buckets, kind="stable")
    batch, buckets = batch.take(pa.array(order)), buckets[order]
    found, starts = np.unique(buckets, return_index=True)
    with RecordSink(None, batch.schema, OutputStem(stage.root, deal.stem, stage.run_id), complete=False) as sink:
        for start, stop in zip(starts, [*starts[1:], len(buckets)], strict=True):
            sink.add(batch.slice(start, stop - start))
        [part] = sink.commit().split_files
    return ScatteredUnit(part=part, buckets=found.tolist())


def shuffle_units(
    shuffle: Shuffle,
    runner: StageRunner,
    stage: StageContext,
    units: Sequence[StageUnit],
    results: Iterable[SliceResult],
) -> list[StageUnit]:
    """Units of the next leg: what is held out as it was, then one a bucket, in order.

    Copies that a `mix` has made come behind the first epoch.
    """
    epochs: dict[int, list[tuple[StageUnit, SliceResult]]] = {}
    for unit, result in zip(units, results, strict=True):
        if list_training_inputs(result):
            epochs.setdefault(unit.epoch, []).append((unit, result))
    held_out = [unit for pair in zip(units, results, strict=True) for unit in _select_held_out(*pair)]
    return held_out + [
        bucket for epoch in sorted(epochs) for bucket in _shuffle_epoch(shuffle, runner, stage, epochs[epoch], epoch)
    ]


def _shuffle_epoch(
    shuffle: Shuffle,
    runner: StageRunner,
    stage: StageContext,
    filled: Sequence[tuple[StageUnit, SliceResult]],
    epoch: int,
) -> list[StageUnit]:
    # Of the blocks alone: how many files they lie in depends on the size of the tasks.
    num_bytes = sum(sum(part.data_blocks) for _, result in filled for part in result.split_files if part.split == TRAIN)
    num_buckets = -(-num_bytes // BUCKET_BYTES)
    whole = fingerprint.of([unit.fingerprint for unit, _ in filled], "shuffle", num_buckets)
    tasks = []
    for unit, result in filled:
        name = fingerprint.of(unit.fingerprint, "deal", num_buckets)
        inputs = tuple(list_training_inputs(result))
        tasks.append(
            Task(name, ScatterTask(unit.source.name, shuffle, inputs, epoch, num_buckets, f"{WORK_FOLDER}/work/{name}"))
        )
    runner.run_tasks(
        run_scatter, stage, [task for task in tasks if runner.find_receipt(task.id, ScatteredUnit) is None], "shuffle"
    )
    blocks: dict[int, list[StoredBlock]] = {}
    for task in tasks:
        dealt = runner.find_receipt(task.id, ScatteredUnit)
        if dealt is not None:
            for bucket, block in zip(dealt.buckets, _locate_blocks(dealt.part), strict=True):
                blocks.setdefault(bucket, []).append(block)
    source = filled[0][0].source
    schema = canonical_schema(stage.sources[source.name].output_schema)
    return [
        StageUnit(
            source,
            fingerprint.of(whole, bucket),
            (StoredBucket(shuffle, schema, tuple(blocks[bucket]), source.name, epoch),),
            epoch,
        )
        for bucket in sorted(blocks)
    ]


def _select_held_out(unit: StageUnit, result: SliceResult) -> Iterator[StageUnit]:
    """The part of a unit that is not for training, if it has one."""
    inputs = tuple(stored for stored in list_stored_inputs(result) if stored.split != TRAIN)
    if inputs:
        yield replace(unit, fingerprint=fingerprint.of(unit.fingerprint, "held out"), inputs=inputs)


def _locate_blocks(part: SplitFile) -> Iterator[StoredBlock]:
    start = 0
    for rows, size in zip(part.row_blocks, part.data_blocks, strict=True):
        yield StoredBlock(part.data.path, start, size, rows)
        start += size
