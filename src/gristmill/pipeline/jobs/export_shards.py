"""The shards of an export: which they are, in their order, how many tokens each holds, and their columns.

Shards of JSON records have no types: where an export format needs some, they come from a sample.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.checks import check_choice
from gristmill.core.json_values import JSON_TYPE, make_field
from gristmill.core.records import ORIGIN, ORIGIN_TYPE, OTHER_FIELDS, TEXT, TEXT_TYPE, SourceFile
from gristmill.engine.tasks import Task
from gristmill.exports.layout import ShardSlot, measure_shard, sum_sizes
from gristmill.readers.field_types import without_nulls
from gristmill.readers.read import Read
from gristmill.readers.schema import sample_record_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.engine.tasks import Context
    from gristmill.exports.layout import ShardSize
    from gristmill.pipeline.jobs.job_pool import RunTasks
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location

JSON_SHARD_FORMATS = ("jsonl", "webdataset")
"""The formats of shards that hold records as JSON, without types."""


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
    slots: dict[str, list[ShardSlot]], run: RunTasks, *, with_ids: bool
) -> tuple[dict[str, list[ShardSlot]], ShardSize]:
    """Count the tokens of the shards, without splits that have none, and measure them together."""
    shards = [slot for split_slots in slots.values() for slot in split_slots]
    sizes: dict[str, ShardSize] = {}
    tasks = [Task(slot.path, slot) for slot in shards]
    # Lengths alone are 4 bytes a document: reading them takes less time than starting a worker.
    options = {} if with_ids else {"backend": "serial", "workers": 1}
    for task, size in run(partial(_measure_shard, with_ids=with_ids), tasks, desc="measuring", **options):
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
    return measured, sum_sizes(sizes.values())


def _measure_shard(task: Task, context: Context, *, with_ids: bool) -> ShardSize:  # noqa: ARG001
    return measure_shard(task.payload, with_ids=with_ids)


def sample_schema(slots: Sequence[ShardSlot], stored_format: str) -> pa.Schema:
    """Infer the columns of a split: one for each key in a sample, and `other_fields` if there may be more keys."""
    shards = [SourceFile(slot.path, slot.path, Path(slot.path).stat().st_size, "", 0) for slot in slots]
    read = Read(read=[slot.path for slot in slots], format="gristmill")
    types, sees_all = sample_record_types(read, shards)
    columns = [pa.field(ORIGIN, ORIGIN_TYPE), pa.field(TEXT, TEXT_TYPE)]
    columns += [make_field(name, without_nulls(kind), why) for name, (kind, why) in types.items()]
    if not sees_all or stored_format != "jsonl":
        columns.append(make_field(OTHER_FIELDS, JSON_TYPE))
    return pa.schema(columns)
