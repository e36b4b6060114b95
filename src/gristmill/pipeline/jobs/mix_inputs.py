"""The datasets of a mix: opened, checked against each other, and measured row by row."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.numbers import check_positive_number
from gristmill.core.recipe import check_source_name
from gristmill.engine.tasks import Task
from gristmill.shards.arrow_stream import read_mapped_batches
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.manifests.manifest_file import load_manifest
from gristmill.shards.token_rows import LENGTHS, check_rows
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.locations import measure_file, parse_location

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.jobs.job_pool import RunTasks
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.shards.manifests.stored_files import Shard
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class MixSource:
    """One dataset of a mix."""

    name: str
    folder: Location
    manifest: Manifest
    shards: list[Shard]
    row_weights: NDArray[np.int64]
    """How much each row counts, in the unit of the mix."""


@dataclass(frozen=True, slots=True)
class _ShardToWeigh:
    """A shard whose rows are checked and weighed by a task."""

    folder: Location
    shard: Shard
    by: str
    schema: pa.Schema | None


def open_inputs(inputs: object, split: str, by: str, run: RunTasks) -> tuple[dict[str, float], list[MixSource]]:
    """Open and check the datasets of a mix; returns their weights by name, and the datasets."""
    folders, weights = _check_inputs(inputs)
    opened = [(name, folder, *_open_source(folder, split, by)) for name, folder in folders.items()]
    tasks = [
        Task(str(shard.below(folder)), _ShardToWeigh(folder.absolute(), shard, by, manifest.shard_schema()))
        for _, folder, manifest, shards in opened
        for shard in shards
    ]
    row_weights = {task.id: weighed for task, weighed in run(_weigh_shard, tasks, desc="checking")}
    sources = []
    for name, folder, manifest, shards in opened:
        all_weights = [row_weights[str(shard.below(folder))] for shard in shards]
        source = MixSource(name, folder, manifest, shards, np.concatenate(all_weights, dtype=np.int64))
        if not source.row_weights.any():
            raise UsageError(f"the rows of {folder} hold no {by}")
        sources.append(source)
    _check_compatible(sources)
    return weights, sources


def _check_inputs(inputs: object) -> tuple[dict[str, Location], dict[str, float]]:
    """Check what the user passed; returns folders and weights by name."""
    folders, weights = {}, {}
    if not isinstance(inputs, Mapping) or not inputs:
        raise UsageError(f"a mix needs datasets, not {inputs!r:.80}", help='{"web": ("out/web", 0.7), …}')
    for name, pair in inputs.items():
        check_source_name(name)
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str | os.PathLike):
            raise UsageError(f"{name} must be a folder and its weight, not {pair!r:.80}", help='("out/web", 0.7)')
        folders[name], weights[name] = parse_location(pair[0]), check_positive_number(f"the weight of {name}", pair[1])
    return folders, weights


def _open_source(folder: Location, split: str, by: str) -> tuple[Manifest, list[Shard]]:
    manifest = load_manifest(folder)
    if manifest.format != "arrow":
        raise UsageError(
            f"{folder} holds {manifest.format} files, and mix reads Arrow shards", help="write: {format: arrow}"
        )
    if by == "tokens" and LENGTHS not in manifest.schema.columns:
        raise UsageError(f"{folder} holds {manifest.kind}, which have no tokens", help="by=rows, or tokenize it first")
    check_choice("split", split, manifest.splits)
    shards = [shard for shard_split, _, shard in manifest.shards() if shard_split == split and shard.rows]
    if not shards:
        raise UsageError(f"{folder} has no rows in the split {split}")
    return manifest, shards


def _weigh_shard(task: Task, context: Context) -> NDArray[np.integer]:
    """Check a shard, and find how much each of its rows counts."""
    folder, shard, by = task.payload.folder, task.payload.shard, task.payload.by
    path = shard.below(folder)
    try:
        # First of all: a damaged length would silently change the shares.
        if measure_file(path) != shard.bytes or compute_file_checksum(str(path)) != shard.xxh3:
            raise make_damage_error(path, "is not as it was written", folder)
        weights = [_weigh_rows(batch, by) for batch in read_mapped_batches(path, task.payload.schema)]
        row_weights = np.concatenate([np.zeros(0, np.int64), *weights])
    except READ_ERRORS as error:
        raise make_damage_error(path, f"cannot be read: {error}", folder) from error
    if len(row_weights) != shard.rows:
        raise make_damage_error(path, f"holds {len(row_weights)} rows, but the manifest says {shard.rows}", folder)
    context.count(rows=shard.rows)
    return row_weights.astype(np.min_scalar_type(int(row_weights.max(initial=0))))  # few bytes in the answer


def _weigh_rows(batch: pa.RecordBatch, by: str) -> NDArray[np.int64]:
    """Find how much each row of a batch counts."""
    if by == "rows" or LENGTHS not in batch.schema.names:
        return np.ones(batch.num_rows, dtype=np.int64)
    check_rows(batch)
    lengths = batch.column(LENGTHS)
    ends: NDArray[np.int32] = lengths.offsets.to_numpy()
    totals = np.arange(len(lengths.values) + 1)
    if by == "tokens":
        totals[1:] = np.cumsum(lengths.values.to_numpy())
    return np.diff(totals[ends])


def _check_compatible(sources: list[MixSource]) -> None:
    first = sources[0]
    for source in sources[1:]:
        if source.manifest.schema.columns != first.manifest.schema.columns:
            raise UsageError(
                f"{first.name} and {source.name} have different columns: {first.manifest.schema.columns} and "
                f"{source.manifest.schema.columns}",
                help="make them with the same tokenizer and row_length",
            )
        tokenizers = [each.manifest.tokenizer for each in (first, source)]
        contents = {tokenizer.content for tokenizer in tokenizers if tokenizer is not None}
        if len(contents) > 1:
            raise UsageError(f"{first.name} and {source.name} have different tokenizers", help="tokenize them alike")
