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
from gristmill.pipeline import fingerprint
from gristmill.pipeline.legs import UnitWork
from gristmill.pipeline.output import WORK
from gristmill.pipeline.sink import Part, Place, Sink
from gristmill.pipeline.stored import StoredBlock, StoredBucket, StoredInput
from gristmill.shards.canonical import canonical_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.legs import LegRunner
    from gristmill.pipeline.work import PartResult, Stage
    from gristmill.steps.limit import Limit
    from gristmill.steps.shuffle import Shuffle
    from gristmill.steps.split import Split

BUCKET_BYTES = 64 << 20


def stored_inputs(result: PartResult) -> list[StoredInput]:
    """What a unit of an earlier leg left, as input."""
    return [StoredInput(part.data.path, part.rows, part.split) for part in result.parts]


def training_inputs(result: PartResult) -> list[StoredInput]:
    """The part of it that is for training."""
    return [stored for stored in stored_inputs(result) if stored.split == TRAIN]


def after_limit(limit: Limit, units: Sequence[UnitWork], results: Iterable[PartResult]) -> list[UnitWork]:
    """The same units, each with its share of the number; splits that are not limited are as they were."""
    splits = sorted({part.split for result in results for part in result.parts if limit.limits(part.split)})
    shares = {split: iter(limit.shares(_rows_of(split, result) for result in results)) for split in splits}
    limited = []
    for unit, result in zip(units, results, strict=True):
        left = {split: next(of_units) for split, of_units in shares.items()}
        if result.parts:
            name = fingerprint.of(unit.fingerprint, "limit", left)
            limited.append(replace(unit, fingerprint=name, inputs=tuple(_first(result, left))))
    return limited


def _rows_of(split: str, result: PartResult) -> int:
    return sum(part.rows for part in result.parts if part.split == split)


def after_split(units: Sequence[UnitWork], results: Iterable[PartResult]) -> list[UnitWork]:
    """The same units with all their records."""
    return [
        replace(unit, inputs=tuple(stored_inputs(result)))
        for unit, result in zip(units, results, strict=True)
        if result.parts
    ]


def _first(result: PartResult, left: dict[str, int]) -> Iterator[StoredInput]:
    """What a unit gives, if so many records of a limited split may still come."""
    left = dict(left)
    for stored in stored_inputs(result):
        if stored.split in left:
            stored = replace(stored, share=min(left[stored.split], stored.num_rows))  # noqa: PLW2901
            left[stored.split] -= stored.share or 0
        yield stored


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest keys of a unit's records, and how many records there are."""

    smallest: list[int]
    num_records: int


@dataclass(frozen=True, slots=True)
class KeysTask:
    """Find the keys that a `split` by numbers needs."""

    split: Split
    inputs: tuple[StoredInput, ...]


def run_keys(task: Task, context: Context) -> Keys:
    """The function of these tasks; `context.state` is the `Stage`."""
    stage: Stage = context.state
    work: KeysTask = task.payload
    batches = [batch for stored in work.inputs for batch in stored.batches(stage.root)]
    smallest = work.split.smallest(work.split.keys(batch, stage.seed) for batch in batches)
    return Keys(smallest=smallest.tolist(), num_records=sum(batch.num_rows for batch in batches))


def split_bounds(
    split: Split, runner: LegRunner, stage: Stage, units: Sequence[UnitWork], results: Iterable[PartResult]
) -> tuple[int, int]:
    """The bounds for records of all sources together."""
    tasks = [
        Task(
            fingerprint.of(unit.fingerprint, "keys", msgspec.to_builtins(split)),
            KeysTask(split, inputs),
        )
        for unit, result in zip(units, results, strict=True)
        if (inputs := tuple(training_inputs(result)))
    ]
    runner.run_all(run_keys, stage, [task for task in tasks if runner.receipt(task.id, Keys) is None], "split: keys")
    found = [keys for task in tasks if (keys := runner.receipt(task.id, Keys)) is not None]
    smallest = split.smallest(np.array(keys.smallest, dtype=np.uint64) for keys in found)
    return split.bounds(smallest, sum(keys.num_records for keys in found))


class Dealt(msgspec.Struct, frozen=True, kw_only=True):
    """A unit's records by bucket: `buckets[i]` is the bucket of the i-th block of `part`."""

    part: Part
    buckets: list[int]


@dataclass(frozen=True, slots=True)
class DealTask:
    """Deal one unit's records into buckets."""

    source: str
    shuffle: Shuffle
    inputs: tuple[StoredInput, ...]
    epoch: int
    num_buckets: int
    stem: str


def run_deal(task: Task, context: Context) -> Dealt:
    """The function of these tasks; `context.state` is the `Stage`."""
    stage: Stage = context.state
    deal: DealTask = task.payload
    table = pa.Table.from_batches([batch for stored in deal.inputs for batch in stored.batches(stage.root)])
    batch = table.combine_chunks().to_batches()[0]
    buckets = deal.shuffle.buckets(deal.shuffle.keys(batch, stage.seed, deal.epoch), deal.num_buckets)
    order = np.argsort(buckets, kind="stable")
    batch, buckets = batch.take(pa.array(order)), buckets[order]
    found, starts = np.unique(buckets, return_index=True)
    with Sink(None, batch.schema, Place(stage.root, deal.stem, stage.run_id), complete=False) as sink:
        for start, stop in zip(starts, [*starts[1:], len(buckets)], strict=True):
            sink.add(batch.slice(start, stop - start))
        [part] = sink.commit().parts
    return Dealt(part=part, buckets=found.tolist())


def after_shuffle(
    shuffle: Shuffle, runner: LegRunner, stage: Stage, units: Sequence[UnitWork], results: Iterable[PartResult]
) -> list[UnitWork]:
    """Units of the next leg: what is held out as it was, then one a bucket, in order.

    Copies that a `mix` has made come behind the first epoch.
    """
    epochs: dict[int, list[tuple[UnitWork, PartResult]]] = {}
    for unit, result in zip(units, results, strict=True):
        if training_inputs(result):
            epochs.setdefault(unit.epoch, []).append((unit, result))
    held_out = [unit for pair in zip(units, results, strict=True) for unit in _held_out(*pair)]
    return held_out + [
        bucket for epoch in sorted(epochs) for bucket in _shuffled(shuffle, runner, stage, epochs[epoch], epoch)
    ]


def _shuffled(
    shuffle: Shuffle, runner: LegRunner, stage: Stage, filled: Sequence[tuple[UnitWork, PartResult]], epoch: int
) -> list[UnitWork]:
    # Of the blocks alone: how many files they lie in depends on the size of the tasks.
    num_bytes = sum(sum(part.data_blocks) for _, result in filled for part in result.parts if part.split == TRAIN)
    num_buckets = -(-num_bytes // BUCKET_BYTES)
    whole = fingerprint.of([unit.fingerprint for unit, _ in filled], "shuffle", num_buckets)
    tasks = []
    for unit, result in filled:
        name = fingerprint.of(unit.fingerprint, "deal", num_buckets)
        inputs = tuple(training_inputs(result))
        tasks.append(Task(name, DealTask(unit.source.name, shuffle, inputs, epoch, num_buckets, f"{WORK}/work/{name}")))
    runner.run_all(run_deal, stage, [task for task in tasks if runner.receipt(task.id, Dealt) is None], "shuffle")
    blocks: dict[int, list[StoredBlock]] = {}
    for task in tasks:
        dealt = runner.receipt(task.id, Dealt)
        if dealt is not None:
            for bucket, block in zip(dealt.buckets, _blocks(dealt.part), strict=True):
                blocks.setdefault(bucket, []).append(block)
    source = filled[0][0].source
    schema = canonical_schema(stage.legs[source.name].output_schema)
    return [
        UnitWork(
            source,
            fingerprint.of(whole, bucket),
            (StoredBucket(shuffle, schema, tuple(blocks[bucket]), source.name, epoch),),
            epoch,
        )
        for bucket in sorted(blocks)
    ]


def _held_out(unit: UnitWork, result: PartResult) -> Iterator[UnitWork]:
    """The part of a unit that is not for training, if it has one."""
    inputs = tuple(stored for stored in stored_inputs(result) if stored.split != TRAIN)
    if inputs:
        yield replace(unit, fingerprint=fingerprint.of(unit.fingerprint, "held out"), inputs=inputs)


def _blocks(part: Part) -> Iterator[StoredBlock]:
    start = 0
    for rows, size in zip(part.row_blocks, part.data_blocks, strict=True):
        yield StoredBlock(part.data.path, start, size, rows)
        start += size
