"""The barrier of `shuffle`: records are scattered into buckets by their keys, and each bucket is sorted.

A bucket is a unit of the next stage. It is sorted when that stage reads it, so a record is written to disk twice
before it comes to a shard: by the stage that has ended, and into its bucket. A worker holds one bucket, about 64 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.seeds import find_ranges
from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, list_training_inputs
from gristmill.pipeline.barriers.exchange import Exchange, Part, RecordWriting
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stored import WholeRecords
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.readers.cells import CELL_BYTES
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.stored_files import StoredRange
from gristmill.steps.edit_columns import with_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.pipeline.barriers.record_files import Receipt
    from gristmill.pipeline.stages.stage_context import SliceResult
    from gristmill.steps.sampling import Shuffle
    from gristmill.storage.locations import Location


class StoredBlock(StoredRange, frozen=True, kw_only=True):
    """One record batch in a file of Arrow blocks."""

    rows: int


@dataclass(frozen=True, slots=True)
class StoredBucket(WholeRecords):
    """A bucket of a `shuffle`: blocks of many units, sorted together when they are read."""

    shuffle: Shuffle
    schema: pa.Schema
    blocks: tuple[StoredBlock, ...]
    source: str
    epoch: int

    @property
    def num_rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    def batches(self, root: Location, seed: int) -> Iterator[pa.RecordBatch]:
        """Sort the whole bucket, then give it in batches of about one cell."""
        table = pa.Table.from_batches([batch for block in self.blocks for batch in self._read(root, block)])
        rows = self.shuffle.sort(table.combine_chunks().to_batches()[0], seed, self.epoch)
        if self.shuffle.joins_sources:
            rows = with_source(rows, self.source)
        # The number of rows comes from the bucket's mean, which does not depend on how the input was cut into tasks.
        step = max(1, rows.num_rows * CELL_BYTES // max(rows.nbytes, 1))
        for first in range(0, rows.num_rows, step):
            yield rows.slice(first, step)

    def _read(self, root: Location, block: StoredBlock) -> list[pa.RecordBatch]:
        return [pa.ipc.read_record_batch(pa.ipc.read_message(block.read(root)), self.schema)]


def scatter_unit(shuffle: Shuffle, seed: int, epoch: int, num_buckets: int, partition: Partition) -> dict[str, Any]:
    """Cut the records of a unit into blocks by bucket: `buckets[i]` is the bucket of the i-th block."""
    table = pa.Table.from_batches([batch for _, batch in partition.batches()])
    batch = table.combine_chunks().to_batches()[0]
    buckets = find_ranges(shuffle.keys(batch, seed, epoch), num_buckets)
    order = np.argsort(buckets, kind="stable")
    batch, buckets = batch.take(pa.array(order)), buckets[order]
    numbers, starts = np.unique(buckets, return_index=True)
    bounds = pairwise([*starts.tolist(), len(buckets)])
    return {"blocks": [batch.slice(start, stop - start) for start, stop in bounds], "buckets": numbers}


@dataclass(frozen=True, slots=True)
class ShuffleBarrier:
    """Puts the records of each source in a random order; what is held out stays as it is."""

    step: Shuffle

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        units = {source.name: self._shuffle_source(source, run) for source in sources}
        return BarrierOutcome(units=units, entry_account=self.step.name)

    def _shuffle_source(self, source: BarrierSource, run: BarrierRun) -> list[StageUnit]:
        """Make the next units: what is held out, then the buckets in order.

        Copies that a `mix` has made come after the whole first epoch.
        """
        epochs: dict[int, list[tuple[StageUnit, SliceResult]]] = {}
        for unit, result in source.unit_results():
            if list_training_inputs(result):
                epochs.setdefault(unit.epoch, []).append((unit, result))
        held_out = [unit for pair in source.unit_results() for unit in _select_held_out(*pair)]
        return held_out + [
            bucket for epoch in sorted(epochs) for bucket in self._shuffle_epoch(epochs[epoch], epoch, run)
        ]

    def _shuffle_epoch(
        self, pairs: Sequence[tuple[StageUnit, SliceResult]], epoch: int, run: BarrierRun
    ) -> list[StageUnit]:
        # Only blocks are counted: the number of files they are in depends on the size of the tasks.
        files = [file for _, result in pairs for file in result.split_files if file.split == TRAIN]
        num_buckets = -(-sum(sum(file.data_blocks) for file in files) // run.plan.layout.bucket_bytes)
        parts = [
            (
                fingerprint.of(unit.fingerprint, "deal", num_buckets),
                Part(number, inputs=tuple(list_training_inputs(result))),
            )
            for number, (unit, result) in enumerate(pairs)
        ]
        stage = partial(scatter_unit, self.step, run.context.seed, epoch, num_buckets)
        writes = {"blocks": RecordWriting(np.dtype(np.uint8), is_stream=True)}
        blocks: dict[int, list[StoredBlock]] = {}
        for receipt in Exchange(run, "shuffle").run(stage, parts, "buckets", writes=writes).receipts:
            for bucket, block in zip(receipt.numbers["buckets"], _locate_blocks(receipt), strict=True):
                blocks.setdefault(bucket, []).append(block)
        source = pairs[0][0].source
        schema = canonicalize_schema(run.context.sources[source.name].output.schema)
        shuffled = fingerprint.of([unit.fingerprint for unit, _ in pairs], "shuffle", num_buckets)
        return [
            StageUnit(
                source,
                fingerprint.of(shuffled, bucket),
                (StoredBucket(self.step, schema, tuple(blocks[bucket]), source.name, epoch),),
                epoch,
            )
            for bucket in sorted(blocks)
        ]


def _select_held_out(unit: StageUnit, result: SliceResult) -> Iterator[StageUnit]:
    """Give the records of a unit that are not for training as a separate unit, if there are any."""
    inputs = tuple(stored_input for stored_input in list_stored_inputs(result) if stored_input.split != TRAIN)
    if inputs:
        yield replace(unit, fingerprint=fingerprint.of(unit.fingerprint, "held out"), inputs=inputs)


def _locate_blocks(receipt: Receipt) -> Iterator[StoredBlock]:
    start = 0
    for rows, size, checksum in zip(*(receipt.numbers[name] for name in ("rows", "bytes", "checksums")), strict=True):
        yield StoredBlock(file=receipt.whole["blocks"], start=start, num_bytes=size, checksum=checksum, rows=rows)
        start += size
