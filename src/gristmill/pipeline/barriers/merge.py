"""Tasks that merge what was scattered of several streams, so that partitions are read in few large pieces.

A stream is as large as its unit, and a partition has a piece of each stream: of 7 kB, with a billion documents. On a
store each is a request. Of T bytes in all, merged by groups of G and read by partitions of S, a piece has G · S / T:
1 MiB, if both are the root of T · 1 MiB. They grow to at most 16 times `partition_bytes`: 512 MiB, for a T of 256 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.seeds import find_ranges
from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.record_files import PartitionedFile, Receipt, scatter_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext
from gristmill.pipeline.work_folder import stored_path
from gristmill.steps.deduplicate.partitions import MAX_GROWTH, grow_partition_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.planning.units import UnitLayout


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The groups that streams are merged by. They follow from sizes alone, so that a resumed run has the same."""

    num_partitions: int
    groups: tuple[range, ...]
    """The numbers of the streams of each group."""


def plan_merge(
    sizes: Sequence[int], num_partitions: int, partition_bytes: int, layout: UnitLayout, *, on_store: bool
) -> MergePlan | None:
    """Choose how streams of these sizes are merged, which would else be read in `num_partitions`; None: not at all."""
    if not _has_small_pieces(sizes, num_partitions, layout, on_store=on_store):
        return None
    size = grow_partition_bytes(sum(sizes), partition_bytes, piece_bytes=layout.min_piece_bytes)
    return _group_streams(sizes, max(1, -(-sum(sizes) // size)), partition_bytes, layout)


def plan_join(
    sizes: Sequence[int], num_partitions: int, partition_bytes: int, layout: UnitLayout, *, on_store: bool
) -> MergePlan | None:
    """Choose how files of these sizes are joined that have as many partitions as are needed; None: not at all."""
    if not _has_small_pieces(sizes, num_partitions, layout, on_store=on_store):
        return None
    plan = _group_streams(sizes, num_partitions, partition_bytes, layout)
    has_fewer_reads = len(sizes) + len(plan.groups) * num_partitions < len(sizes) * num_partitions
    return plan if has_fewer_reads else None


def _has_small_pieces(sizes: Sequence[int], num_partitions: int, layout: UnitLayout, *, on_store: bool) -> bool:
    num_pieces = len(sizes) * num_partitions
    is_small = on_store and num_partitions > 1 and sum(sizes) < num_pieces * layout.min_piece_bytes
    return is_small or num_pieces > layout.max_pieces


def _group_streams(sizes: Sequence[int], num_partitions: int, partition_bytes: int, layout: UnitLayout) -> MergePlan:
    """Group streams: into as few groups as leave large pieces, and as many as fit into memory."""
    num_bytes = sum(sizes)
    most_for_pieces = num_bytes // (num_partitions * layout.min_piece_bytes)
    num_groups = max(1, most_for_pieces, num_bytes // (MAX_GROWTH * partition_bytes))
    num_groups = min(num_groups, len(sizes))
    middles = np.cumsum(sizes) - np.array(sizes) // 2
    numbers = np.minimum(middles * num_groups // max(1, num_bytes), num_groups - 1).tolist()
    groups = [list(group) for _, group in groupby(range(len(sizes)), key=lambda stream: numbers[stream])]
    return MergePlan(num_partitions, tuple(range(group[0], group[-1] + 1) for group in groups))


@dataclass(frozen=True, slots=True)
class MergeTask:
    """A task that merges the records of some consecutive streams."""

    streams: tuple[PartitionedFile, ...]
    starts: NDArray[np.int64]
    """The number of each stream's first document, counted from that of the first stream."""
    stem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeContext(StageContext):
    """The context of tasks that merge streams."""

    kind: np.dtype[Any]
    """The type of records: a hash first, and the row of a document in its stream."""
    num_partitions: int


def run_merge(task: Task, context: Context) -> Receipt:
    """Run a `MergeTask`; `context.state` is the `MergeContext`."""
    stage: MergeContext = context.state
    merge: MergeTask = task.payload
    merged = np.empty(sum(stream.num_records for stream in merge.streams), stage.kind)
    first = 0
    for number, (stream, start) in enumerate(zip(merge.streams, merge.starts, strict=True)):
        context.at(number)
        records = merged[first : first + stream.num_records]
        records[:] = stream.read_all(stage.work, stage.kind)
        records["row"] += np.uint32(start)
        first += stream.num_records
        context.count(records=stream.num_records)
    partitions = find_ranges(merged[next(iter(stage.kind.names or ()))], stage.num_partitions)
    return _write_merged(stage, merge, merged, partitions)


def run_join(task: Task, context: Context) -> Receipt:
    """Run a `MergeTask` for files with the same partitions, which records keep; `context.state` is a `MergeContext`."""
    stage: MergeContext = context.state
    merge: MergeTask = task.payload
    read = [stream.read_with_partitions(stage.work, stage.kind) for stream in merge.streams]
    records, partitions = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
    del read
    context.count(records=len(records))
    return _write_merged(stage, merge, records, partitions)


def _write_merged(
    stage: MergeContext, merge: MergeTask, records: NDArray[Any], partitions: NDArray[np.int64]
) -> Receipt:
    stem = open_stem(stage.work, merge.stem, stage.run_id)
    return Receipt(
        stage="merging",
        scattered={"merged": scatter_records(stem, ".merged", records, partitions, stage.num_partitions)},
    )


def make_merge_tasks(
    plan: MergePlan, streams: Sequence[PartitionedFile], starts: NDArray[np.int64], name: str
) -> list[Task]:
    """Make the task of each group, of streams whose first documents have these numbers; `name` says what they hold."""
    tasks = []
    for group in plan.groups:
        members = slice(group.start, group.stop)
        # A unit whose files were lost may come back cut into other streams: numbers of streams alone name nothing.
        num_records = sum(stream.num_records for stream in streams[members])
        described = [group.start, group.stop, int(starts[group.start]), num_records, plan.num_partitions]
        task_name = fingerprint.of(name, "merge", described)
        payload = MergeTask(tuple(streams[members]), starts[members] - starts[group.start], stored_path(task_name))
        tasks.append(Task(task_name, payload))
    return tasks
