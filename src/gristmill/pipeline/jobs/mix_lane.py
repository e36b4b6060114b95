"""The datasets of a mix as one sequence of rows, each source in its share of every beginning.

Rows of a source come epoch after epoch, in the order of its shards. Memory holds one block: the next to be written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.records import ORIGIN
from gristmill.order.interleaving import Interleaving
from gristmill.pipeline.planning.units import UNIT_BYTES
from gristmill.pipeline.stages.interleave import RowCursor, interleave_rows
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.arrow_stream import STREAM_END, read_mapped_batches, stream_block, stream_header
from gristmill.shards.block_index import ShardBlocks
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.manifests.manifest import MIXED
from gristmill.shards.manifests.stored_files import MixedShare, Shard, file_key
from gristmill.shards.token_rows import CHATS, LENGTHS, ORIGINS, is_masked, num_tokens, num_trained_tokens
from gristmill.steps.read import CELL_BYTES
from gristmill.steps.records.source_column import with_source, with_source_field
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.jobs.mix_inputs import MixSource
    from gristmill.shards.block_index import BlockIndexWriter
    from gristmill.shards.manifests.stored_files import InputFile
    from gristmill.storage.locations import Location


@dataclass(slots=True)
class SelectedRows:
    """The rows of one source that are part of a mix, in their order."""

    source: MixSource
    whole_epochs: int
    is_selected: NDArray[np.bool_]
    """Which rows of the incomplete epoch are part of it."""
    new_file_ids: dict[int, int]
    """New ids of input files whose own id another source of the mix has, too."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of rows and tokens; complete when all batches have been read."""

    @property
    def num_rows(self) -> int:
        return self.whole_epochs * len(self.is_selected) + int(np.count_nonzero(self.is_selected))

    @property
    def num_bytes(self) -> int:
        """The approximate size of the selected rows."""
        return sum(shard.bytes for shard in self.source.shards) * self.num_rows // len(self.is_selected)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all selected rows; documents get the name of the source."""
        for epoch in range(self.whole_epochs + 1):
            is_selected = None if epoch < self.whole_epochs else self.is_selected
            for batch in self._read_epoch(is_selected):
                if batch.num_rows:
                    self._count(batch)
                    yield with_source(batch, self.source.name)

    def _read_epoch(self, is_selected: NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
        """Read one epoch; None: all rows of it."""
        first = 0
        for shard in self.source.shards:
            if is_selected is not None and not is_selected[first : first + shard.rows].any():
                first += shard.rows
                continue
            for stored_batch in read_mapped_batches(shard.below(self.source.folder)):
                batch = _replace_file_ids(stored_batch, self.new_file_ids) if self.new_file_ids else stored_batch
                if is_selected is None:
                    yield batch
                else:
                    yield batch.filter(pa.array(is_selected[first : first + batch.num_rows]))
                first += batch.num_rows

    def _count(self, batch: pa.RecordBatch) -> None:
        self.counts["rows"] += batch.num_rows
        if self.source.manifest.holds_rows:
            self.counts["tokens"] += num_tokens(batch)
        if self.source.manifest.kind == CHATS:
            self.counts["trained_tokens"] += num_trained_tokens(batch)

    def measure_share(self) -> MixedShare:
        """Count what the lane holds of the source."""
        is_chats = self.source.manifest.kind == CHATS
        return MixedShare(
            rows=self.counts["rows"],
            tokens=self.counts["tokens"] or None,
            trained_tokens=self.counts["trained_tokens"] if is_chats else msgspec.UNSET,
        )

    def list_input_files(self) -> Iterator[tuple[str, InputFile]]:
        """List the input files by the ids in the rows, as files of this source."""
        for key, file in self.source.manifest.files.items():
            number = int(key, 16)
            yield (
                file_key(self.new_file_ids.get(number, number)),
                msgspec.structs.replace(file, source=self.source.name),
            )


def select_rows(
    source: MixSource, whole_epochs: int, is_selected: NDArray[np.bool_], file_ids: set[int]
) -> SelectedRows:
    """Select whole epochs of a source, and rows of one more. Adds its file ids to `file_ids`, those of other sources.

    The id of an input file is a hash of its source and path. Two recipes may both have a source `web` with a file
    `a.jsonl`: where their datasets are mixed, one of the two files needs another id.
    """
    own_ids = {int(key, 16) for key in source.manifest.files}
    clashes = own_ids & file_ids
    new_file_ids = {
        number: xxhash.xxh3_64_intdigest(f"{source.name}\0{file_key(number)}".encode()) for number in clashes
    }
    file_ids |= (own_ids - clashes) | set(new_file_ids.values())
    return SelectedRows(source, whole_epochs, is_selected, new_file_ids)


class InterleavedLane:
    """The lane that a mix writes. The inputs alone decide where its shards end."""

    def __init__(self, sources: Sequence[SelectedRows]) -> None:
        self.sources = sources
        first = sources[0].source.manifest
        self.schema = canonicalize_schema(with_source_field(first.schema.to_arrow()))
        self._order = Interleaving([rows.num_rows for rows in sources])
        num_rows, num_bytes = self._order.num_records, sum(rows.num_bytes for rows in sources)
        self._shard_rows = -(-num_rows // max(1, -(-num_bytes // UNIT_BYTES)))
        self._block_rows = max(1, num_rows * CELL_BYTES // max(num_bytes, 1))

    def list_paths(self, split: str) -> list[str]:
        """List the final paths of the shards."""
        num_shards = -(-self._order.num_records // self._shard_rows)
        return [f"{split}/{MIXED}/shard-{number:05d}.arrow" for number in range(num_shards)]

    def write(self, split: str, target: Location, run_id: str, index: BlockIndexWriter) -> list[Shard]:
        """Write all shards to the work folder."""
        cursors = [RowCursor(rows.batches()) for rows in self.sources]
        drawn = np.zeros(len(cursors), dtype=np.int64)
        shards = []
        for number, path in enumerate(self.list_paths(split)):
            first = number * self._shard_rows
            stop = min(first + self._shard_rows, self._order.num_records)
            sources = self._order.sources(first, drawn, stop - first)
            drawn += np.bincount(sources, minlength=len(cursors))
            blocks = (
                interleave_rows(sources[start : start + self._block_rows], cursors)
                for start in range(0, len(sources), self._block_rows)
            )
            shard, shard_blocks = write_shard(blocks, self.schema, target, path, run_id, tasks=[])
            index.add(split, MIXED, shard_blocks)
            shards.append(shard)
        return shards


def write_shard(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, target: Location, path: str, run_id: str, tasks: list[str]
) -> tuple[Shard, ShardBlocks]:
    """Write a shard to the work folder; `path` is its final path."""
    count: Counter[str] = Counter()
    is_chats = is_masked(schema)
    header = stream_header(schema)
    blocks = ShardBlocks(len(header))
    with PendingFile(target / work_path(path), run_id) as file:
        file.write(header)
        for batch in batches:
            block = stream_block(batch, schema)
            file.write(block)
            blocks.add(block, batch)
            count["rows"] += batch.num_rows
            if LENGTHS in schema.names:
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
        tokens=count["tokens"] if LENGTHS in schema.names else None,
        trained_tokens=count["trained"] if is_chats else msgspec.UNSET,
        tasks=tasks,
    )
    return shard, blocks


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
