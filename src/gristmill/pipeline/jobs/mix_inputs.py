"""The datasets of a mix: opened, checked against each other, measured row by row, and read by any worker in any part.

Of each dataset whole epochs come first, in the order of the shards; then the selected rows of one more epoch. Which
these are is a pure function of their numbers (`PartialEpoch`), so that nothing of the size of the dataset is sent to
workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.checks import check_choice, check_positive_number
from gristmill.core.errors import UsageError
from gristmill.core.recipe import check_source_name
from gristmill.core.records import ORIGIN
from gristmill.engine.tasks import Task
from gristmill.order import Permutation
from gristmill.shards.canonical import make_damage_error, read_mapped_batches, read_unchecked_batches
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.stored_files import file_key
from gristmill.shards.token_rows import LENGTHS, ORIGINS, check_rows
from gristmill.storage.files import compute_file_checksum
from gristmill.storage.locations import measure_file, parse_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.jobs.job_pool import RunTasks
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard
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


def open_inputs(
    inputs: object, epochs: Mapping[str, float] | None, split: str, by: str, run: RunTasks
) -> tuple[dict[str, float], list[MixSource]]:
    """Open and check the datasets of a mix; returns their weights or epochs by name, and the datasets."""
    folders, weights = _check_inputs(inputs) if epochs is None else _check_epochs(inputs, epochs)
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
    for name, pair in _check_names(inputs):
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str | os.PathLike):
            raise UsageError(f"{name} must be a folder and its weight, not {pair!r:.80}", help='("out/web", 0.7)')
        folders[name], weights[name] = parse_location(pair[0]), check_positive_number(f"the weight of {name}", pair[1])
    return folders, weights


def _check_epochs(inputs: object, epochs: Mapping[str, float]) -> tuple[dict[str, Location], dict[str, float]]:
    """Check what the user passed with epochs instead of weights; returns folders and epochs by name."""
    folders = {}
    for name, folder in _check_names(inputs):
        if not isinstance(folder, str | os.PathLike):
            raise UsageError(
                f"{name} must be a folder, not {folder!r:.80}", help="a mix has weights and a size, or epochs"
            )
        if name not in epochs:
            raise UsageError(f"{name} has no epochs", help="say for every dataset how often it is taken")
        folders[name] = parse_location(folder)
    for name in epochs:
        check_choice("a dataset in epochs", name, folders)
    return folders, {name: check_positive_number(f"the epochs of {name}", epochs[name]) for name in folders}


def _check_names(inputs: object) -> Iterable[tuple[str, object]]:
    """Check the names of the datasets; returns them with what the user passed for each."""
    if not isinstance(inputs, Mapping) or not inputs:
        raise UsageError(f"a mix needs datasets, not {inputs!r:.80}", help='{"web": ("out/web", 0.7), …}')
    for name in inputs:
        check_source_name(name)
    return inputs.items()


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
            raise UsageError(f"{first.name} and {source.name} have different tokenizers", help="tokenize both with one")


@dataclass(frozen=True, slots=True)
class PartialEpoch:
    """The rows of an incomplete epoch: the first ones of a random order, given back in their own order."""

    num_rows: int
    """All rows of the dataset."""
    key: int
    count: int
    """The number of rows that are selected."""

    def select(self, first: int, stop: int) -> NDArray[np.bool_]:
        """Tell which of these rows are selected."""
        positions: NDArray[np.int64] = np.asarray(Permutation(self.num_rows, self.key)(np.arange(first, stop)))
        return positions < self.count


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The rows of one source that are part of a mix, in their order. It is sent to the workers."""

    name: str
    paths: tuple[Location, ...]
    """The shards of the source that have rows."""
    shard_rows: tuple[int, ...]
    partial_rows: tuple[int, ...]
    """The rows of each shard that are part of the incomplete epoch."""
    whole_epochs: int
    partial_epoch: PartialEpoch
    new_file_ids: dict[int, int]
    """New ids of input files whose own id another source of the mix has, too."""

    @property
    def num_rows(self) -> int:
        return self.whole_epochs * self.partial_epoch.num_rows + self.partial_epoch.count

    def batches(self, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Read a part of the sequence."""
        start = 0
        for epoch in range(self.whole_epochs + 1):
            counts = self.partial_rows if epoch == self.whole_epochs else self.shard_rows
            for number, count in enumerate(counts):
                if first < start + count and start < stop:
                    between = max(first - start, 0), min(stop - start, count)
                    yield from self.shard_batches(number, *between, is_partial=epoch == self.whole_epochs)
                start += count

    def shard_batches(self, number: int, first: int, stop: int, *, is_partial: bool) -> Iterator[pa.RecordBatch]:
        """Read rows `first` to `stop` of a shard; with `is_partial`, of its rows in the incomplete epoch."""
        row, start = sum(self.shard_rows[:number]), 0
        for stored_batch in read_unchecked_batches(self.paths[number]):
            is_selected = self.partial_epoch.select(row, row + stored_batch.num_rows) if is_partial else None
            count = stored_batch.num_rows if is_selected is None else int(np.count_nonzero(is_selected))
            if first < start + count and start < stop:
                stored_batch.validate(full=True)
                batch = _replace_file_ids(stored_batch, self.new_file_ids) if self.new_file_ids else stored_batch
                batch = batch if is_selected is None else batch.filter(pa.array(is_selected))
                offset = max(first - start, 0)
                yield batch.slice(offset, min(stop - start, count) - offset)
            row, start = row + stored_batch.num_rows, start + count
            if start >= stop:
                return


def select_rows(
    source: MixSource, whole_epochs: int, partial_epoch: PartialEpoch, file_ids: set[int] | None = None
) -> SelectedRows:
    """Select whole epochs of a source, and rows of one more. Adds its file ids to `file_ids`, those of other sources.

    The id of an input file is a hash of its source and path. Two recipes may both have a source `web` with a file
    `a.jsonl`: where their datasets are mixed, one of the two files needs another id.
    """
    new_file_ids = {}
    if file_ids is not None:
        own_ids = {int(key, 16) for key in source.manifest.files}
        clashes = own_ids & file_ids
        new_file_ids = {
            number: xxhash.xxh3_64_intdigest(f"{source.name}\0{file_key(number)}".encode()) for number in clashes
        }
        file_ids |= (own_ids - clashes) | set(new_file_ids.values())
    shard_rows = tuple(shard.rows for shard in source.shards)
    ends = np.cumsum(shard_rows)
    partial_rows = [
        int(np.count_nonzero(partial_epoch.select(end - rows, end)))
        for end, rows in zip(ends.tolist(), shard_rows, strict=True)
    ]
    return SelectedRows(
        name=source.name,
        paths=tuple(shard.below(source.folder.absolute()) for shard in source.shards),
        shard_rows=shard_rows,
        partial_rows=tuple(partial_rows),
        whole_epochs=whole_epochs,
        partial_epoch=partial_epoch,
        new_file_ids=new_file_ids,
    )


def _replace_file_ids(batch: pa.RecordBatch, new_file_ids: dict[int, int]) -> pa.RecordBatch:
    """Replace ids of input files in the origins of a batch."""
    name = ORIGINS if ORIGINS in batch.schema.names else ORIGIN
    index = batch.schema.get_field_index(name)
    column = batch.column(index)
    origin = column.values if name == ORIGINS else column
    ids: NDArray[np.uint64] = origin.field("file").to_numpy(zero_copy_only=False).copy()
    for old in np.unique(ids).tolist():
        if old in new_file_ids:
            ids[ids == old] = new_file_ids[old]
    fields = [pa.array(ids), origin.field("position"), origin.field("part")]
    changed = pa.StructArray.from_arrays(fields, fields=list(origin.type))
    if name == ORIGINS:
        changed = pa.ListArray.from_arrays(column.offsets, changed).cast(column.type)
    return batch.set_column(index, batch.schema.field(index), changed)
