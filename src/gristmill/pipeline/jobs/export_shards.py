"""The shards of an export: which they are, in their order, and how many tokens each holds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gristmill.core.names import check_choice
from gristmill.engine.tasks import Task
from gristmill.exports.layout import ShardSlot
from gristmill.exports.tokens import measure_shard

if TYPE_CHECKING:
    from gristmill.engine.tasks import Context
    from gristmill.exports.tokens import ShardSize
    from gristmill.pipeline.jobs.job_pool import RunTasks
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location


def select_shards(
    manifest: Manifest, folder: Location, split: str | None, source: str | None
) -> dict[str, list[ShardSlot]]:
    """Select the shards to export, by split, in the order of the manifest."""
    if split is not None:
        check_choice("split", split, manifest.splits)
    if source is not None:
        check_choice("source", source, sorted({name for sources in manifest.splits.values() for name in sources}))
    schema = manifest.shard_schema()
    slots: dict[str, list[ShardSlot]] = {}
    for shard_split, shard_source, shard in manifest.shards():
        if split in (None, shard_split) and source in (None, shard_source) and shard.rows:
            split_slots = slots.setdefault(shard_split, [])
            last = split_slots[-1] if split_slots else None
            origins = str(shard.origins.copy_below(folder)) if shard.origins else None
            split_slots.append(
                ShardSlot(
                    path=str(shard.copy_below(folder)),
                    rows=shard.rows,
                    number=len(split_slots),
                    first_row=last.first_row + last.rows if last else 0,
                    schema=schema,
                    origins=origins,
                )
            )
    return slots


def measure_shards(
    slots: dict[str, list[ShardSlot]], run: RunTasks, *, with_max: bool
) -> tuple[dict[str, list[ShardSlot]], int]:
    """Count the tokens of the shards, without splits that have none, and find the largest id."""
    shards = [slot for split_slots in slots.values() for slot in split_slots]
    sizes: dict[str, ShardSize] = {}
    tasks = [Task(slot.path, slot) for slot in shards]
    # Lengths alone are 4 bytes a document: reading them takes less time than starting a worker.
    options = {} if with_max else {"backend": "serial", "workers": 1}
    for task, size in run(partial(_measure_shard, with_max=with_max), tasks, desc="measuring", **options):
        sizes[task.payload.path] = size
    measured: dict[str, list[ShardSlot]] = {}
    for split, split_slots in slots.items():
        first_token = 0
        measured_slots = []
        for slot in split_slots:
            tokens = sizes[slot.path].tokens
            measured_slots.append(replace(slot, first_token=first_token, tokens=tokens))
            first_token += tokens
        if first_token:  # a file without bytes cannot be mapped by its readers
            measured[split] = measured_slots
    return measured, max((size.max_id for size in sizes.values()), default=-1)


def _measure_shard(task: Task, context: Context, *, with_max: bool) -> ShardSize:  # noqa: ARG001
    return measure_shard(task.payload, with_max=with_max)
