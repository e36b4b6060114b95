"""The shards of a mix. Each is written by a separate task, and the inputs alone decide where it ends.

Interleaved, each source has its share of every beginning of the lane: a task knows how many rows of each source come
before its shard, and reads on from there. A worker holds one block: the next to be written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gristmill.engine.tasks import Task
from gristmill.order.mixture import Interleaving
from gristmill.pipeline.stages.join import RowCursor, interleave_rows
from gristmill.pipeline.stages.preparation import check_node
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.block_index import ShardBlocks, scan_blocks
from gristmill.shards.canonical import STREAM_END, stream_block, stream_header
from gristmill.shards.manifest import MIXED
from gristmill.shards.stored_files import Shard
from gristmill.shards.token_rows import LENGTHS, is_masked, num_tokens, num_trained_tokens
from gristmill.steps.edit_columns import with_source
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.jobs.job_pool import RunTasks
    from gristmill.pipeline.jobs.mix_inputs import SelectedRows
    from gristmill.pipeline.planning.units import UnitLayout
    from gristmill.pipeline.stages.preparation import NodeCheck
    from gristmill.storage.locations import Location

SPLIT = "train"
"""The split that a mix writes."""
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class MixJob:
    """All that tasks have in common; each worker keeps it."""

    sources: tuple[SelectedRows, ...]
    schema: pa.Schema
    target: Location
    run_id: str
    check: NodeCheck | None
    """For the nodes of a cluster."""


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard in the work folder, described under its final path."""

    shard: Shard
    blocks: ShardBlocks
    counts: list[Counter[str]]
    """Numbers of rows and tokens of each source, in an interleaved lane."""


@dataclass(frozen=True, slots=True)
class InterleavedShard:
    """Consecutive rows of the lane in which all sources are interleaved."""

    number: int
    first: int
    """The number of its first row in the lane."""
    drawn: list[int]
    """Rows of each source before it."""
    next_drawn: list[int]
    """Rows of each source before the next shard."""
    block_rows: int
    lane: str = MIXED

    def write(self, job: MixJob, path: str) -> WrittenShard:
        """Write it to the work folder; `path` is its final path."""
        num_rows = sum(self.next_drawn) - sum(self.drawn)
        order = Interleaving([rows.num_rows for rows in job.sources]).sources(self.first, self.drawn, num_rows)
        counts: list[Counter[str]] = [Counter() for _ in job.sources]
        cursors = [
            RowCursor(_count_batches(rows.batches(first, stop), rows.name, count))
            for rows, first, stop, count in zip(job.sources, self.drawn, self.next_drawn, counts, strict=True)
        ]
        blocks = (
            interleave_rows(order[start : start + self.block_rows], cursors)
            for start in range(0, num_rows, self.block_rows)
        )
        return WrittenShard(*_write_batches(blocks, job, path, tasks=[]), counts)


@dataclass(frozen=True, slots=True)
class SourceShard:
    """A shard of one source: a copy, or its rows in the incomplete epoch."""

    lane: str
    number: int
    source_number: int
    shard_number: int
    shard: Shard
    """The shard of the input."""
    is_partial: bool

    def write(self, job: MixJob, path: str) -> WrittenShard:
        """Write it to the work folder; `path` is its final path."""
        rows = job.sources[self.source_number]
        if self.is_partial:
            count = rows.partial_rows[self.shard_number]
            batches = rows.shard_batches(self.shard_number, 0, count, is_partial=True)
            return WrittenShard(*_write_batches(batches, job, path, self.shard.tasks), [])
        source_path = rows.paths[self.shard_number]
        with PendingFile(job.target / work_path(path), job.run_id) as file, source_path.open("rb") as content:
            while piece := content.read(_COPY_BYTES):
                file.write(piece)
            file.commit()
        shard = msgspec.structs.replace(self.shard, path=path, bytes=file.num_bytes, xxh3=file.checksum)
        return WrittenShard(shard, scan_blocks(source_path, self.shard, self.shard.rows, "arrow"), [])


PlannedShard = InterleavedShard | SourceShard


def plan_interleaved(sources: Sequence[SelectedRows], num_bytes: int, layout: UnitLayout) -> list[PlannedShard]:
    """Plan the shards of one lane for all sources; the selected rows have about this many bytes."""
    order = Interleaving([rows.num_rows for rows in sources])
    shard_rows = -(-order.num_records // max(1, -(-num_bytes // layout.unit_bytes)))
    block_rows = max(1, order.num_records * layout.cell_bytes // max(num_bytes, 1))
    borders = order.borders(shard_rows).tolist()
    return [
        InterleavedShard(number, number * shard_rows, drawn, next_drawn, block_rows)
        for number, (drawn, next_drawn) in enumerate(pairwise(borders))
    ]


def plan_apart(sources: Sequence[SelectedRows], shards: Sequence[Sequence[Shard]]) -> list[PlannedShard]:
    """Plan the shards of a lane for each source."""
    planned: list[PlannedShard] = []
    for source_number, (rows, source_shards) in enumerate(zip(sources, shards, strict=True)):
        whole = [(number, False) for _ in range(rows.whole_epochs) for number in range(len(source_shards))]
        partly = [(number, True) for number, count in enumerate(rows.partial_rows) if count]
        planned += [
            SourceShard(rows.name, number, source_number, shard_number, source_shards[shard_number], is_partial)
            for number, (shard_number, is_partial) in enumerate(whole + partly)
        ]
    return planned


def write_shards(planned: Sequence[PlannedShard], job: MixJob, run: RunTasks) -> Iterator[tuple[str, WrittenShard]]:
    """Write all shards to the work folder; yield each with its lane, in their order."""
    tasks = [Task(f"{SPLIT}/{shard.lane}/shard-{shard.number:05d}.arrow", shard) for shard in planned]
    waiting: dict[str, WrittenShard] = {}
    next_number = 0
    for task, written in run(_run_task, tasks, setup=partial(_set_up_worker, job), desc="mixing"):
        waiting[task.id] = written
        while next_number < len(tasks) and tasks[next_number].id in waiting:
            yield planned[next_number].lane, waiting.pop(tasks[next_number].id)
            next_number += 1


def _set_up_worker(job: MixJob) -> MixJob:
    if job.check is not None:
        check_node(job.check)
    return job


def _run_task(task: Task, context: Context) -> WrittenShard:
    written: WrittenShard = task.payload.write(context.state, task.id)
    context.count(rows=written.shard.rows)
    return written


def _count_batches(batches: Iterator[pa.RecordBatch], source: str, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Count rows and tokens of a source on their way; documents get its name."""
    for batch in batches:
        counts.update(rows=batch.num_rows)
        if LENGTHS in batch.schema.names:
            counts.update(tokens=num_tokens(batch))
        if is_masked(batch.schema):
            counts.update(trained_tokens=num_trained_tokens(batch))
        yield with_source(batch, source)


def _write_batches(
    batches: Iterator[pa.RecordBatch], job: MixJob, path: str, tasks: list[str]
) -> tuple[Shard, ShardBlocks]:
    count: Counter[str] = Counter()
    is_chats = is_masked(job.schema)
    header = stream_header(job.schema)
    blocks = ShardBlocks(len(header))
    with PendingFile(job.target / work_path(path), job.run_id) as file:
        file.write(header)
        for batch in batches:
            block = stream_block(batch, job.schema)
            file.write(block)
            blocks.add(block, batch)
            count["rows"] += batch.num_rows
            if LENGTHS in job.schema.names:
                count["tokens"] += num_tokens(batch)
            if is_chats:
                count["trained"] += num_trained_tokens(batch)
        file.write(STREAM_END)
        file.commit()
    shard = Shard(
        path=path,
        bytes=file.num_bytes,
        xxh3=file.checksum,
        rows=count["rows"],
        tokens=count["tokens"] if LENGTHS in job.schema.names else None,
        trained_tokens=count["trained"] if is_chats else msgspec.UNSET,
        tasks=tasks,
    )
    return shard, blocks
