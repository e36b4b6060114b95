"""The datasets of a mix as one sequence of rows, each source in its share of every beginning.

Rows of a source come epoch after epoch, in the order of its shards. Only the block that is written next is held.
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
from gristmill.shards.arrow_stream import STREAM_END, mapped_batches, stream_block, stream_header
from gristmill.shards.canonical import canonical_schema
from gristmill.shards.manifest import MIXED, MixedShare, Shard, file_key
from gristmill.shards.token_rows import CHATS, LENGTHS, ORIGINS, is_masked, num_tokens, num_trained_tokens
from gristmill.steps.read import CELL_BYTES
from gristmill.steps.records.source_column import with_source, with_source_field
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.pipeline.jobs.mix_inputs import MixSource
    from gristmill.shards.manifest import InputFile


@dataclass(slots=True)
class SelectedRows:
    """What a mix takes of one source, in its order."""

    source: MixSource
    whole_epochs: int
    is_chosen: NDArray[np.bool_]
    """Which rows of one more epoch."""
    new_files: dict[int, int]
    """Ids of input files that another source has, too, and those that stand for them."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows and tokens, when all batches have been read."""

    @property
    def num_rows(self) -> int:
        return self.whole_epochs * len(self.is_chosen) + int(np.count_nonzero(self.is_chosen))

    @property
    def num_bytes(self) -> int:
        """About, of what is taken."""
        return sum(shard.bytes for shard in self.source.shards) * self.num_rows // len(self.is_chosen)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows; documents with the name of the source."""
        for epoch in range(self.whole_epochs + 1):
            is_taken = None if epoch < self.whole_epochs else self.is_chosen
            for batch in self._epoch(is_taken):
                if batch.num_rows:
                    self._count(batch)
                    yield with_source(batch, self.source.name)

    def _epoch(self, is_taken: NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
        first = 0
        for shard in self.source.shards:
            if is_taken is not None and not is_taken[first : first + shard.rows].any():
                first += shard.rows
                continue
            for stored in mapped_batches(shard.below(self.source.folder)):
                batch = _replace_file_ids(stored, self.new_files) if self.new_files else stored
                yield batch if is_taken is None else batch.filter(pa.array(is_taken[first : first + batch.num_rows]))
                first += batch.num_rows

    def _count(self, batch: pa.RecordBatch) -> None:
        self.counts["rows"] += batch.num_rows
        if self.source.manifest.holds_rows:
            self.counts["tokens"] += num_tokens(batch)
        if self.source.manifest.kind == CHATS:
            self.counts["trained_tokens"] += num_trained_tokens(batch)

    def measure_share(self) -> MixedShare:
        """What the lane holds of it."""
        is_chats = self.source.manifest.kind == CHATS
        return MixedShare(
            rows=self.counts["rows"],
            tokens=self.counts["tokens"] or None,
            trained_tokens=self.counts["trained_tokens"] if is_chats else msgspec.UNSET,
        )

    def list_input_files(self) -> Iterator[tuple[str, InputFile]]:
        """The input files by the ids in its rows, as files of this source."""
        for key, file in self.source.manifest.files.items():
            number = int(key, 16)
            yield (
                file_key(self.new_files.get(number, number)),
                msgspec.structs.replace(file, source=self.source.name),
            )


def select_rows(source: MixSource, whole_epochs: int, is_taken: NDArray[np.bool_], known: set[int]) -> SelectedRows:
    """`known`: ids of the input files of sources before it, to which its own are added.

    Two datasets may have been made of files that are called alike, by recipes that call their sources alike.
    """
    numbers = {int(key, 16) for key in source.manifest.files}
    twice = numbers & known
    new_files = {number: xxhash.xxh3_64_intdigest(f"{source.name}\0{file_key(number)}".encode()) for number in twice}
    known |= (numbers - twice) | set(new_files.values())
    return SelectedRows(source, whole_epochs, is_taken, new_files)


class InterleavedLane:
    """The lane that is to be written: how its rows are cut into shards follows from the inputs alone."""

    def __init__(self, sources: Sequence[SelectedRows]) -> None:
        self.sources = sources
        first = sources[0].source.manifest
        self.schema = canonical_schema(with_source_field(first.schema.to_arrow()))
        self._order = Interleaving([rows.num_rows for rows in sources])
        num_rows, num_bytes = self._order.num_records, sum(rows.num_bytes for rows in sources)
        self._shard_rows = -(-num_rows // max(1, -(-num_bytes // UNIT_BYTES)))
        self._block_rows = max(1, num_rows * CELL_BYTES // max(num_bytes, 1))

    def list_paths(self, split: str) -> list[str]:
        """The files that will be written."""
        num_shards = -(-self._order.num_records // self._shard_rows)
        return [f"{split}/{MIXED}/shard-{number:05d}.arrow" for number in range(num_shards)]

    def write(self, split: str, target: Path, run_id: str) -> list[Shard]:
        """All of them."""
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
            shards.append(write_shard(blocks, self.schema, target, path, run_id, tasks=[]))
        return shards


def write_shard(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, target: Path, path: str, run_id: str, tasks: list[str]
) -> Shard:
    """A shard of these rows."""
    count: Counter[str] = Counter()
    is_chats = is_masked(schema)
    with PendingFile(target / path, run_id) as file:
        file.write(stream_header(schema))
        for batch in batches:
            file.write(stream_block(batch, schema))
            count["rows"] += batch.num_rows
            if LENGTHS in schema.names:
                count["tokens"] += num_tokens(batch)
            if is_chats:
                count["trained"] += num_trained_tokens(batch)
        file.write(STREAM_END)
        file.commit()
    return Shard(
        path=path,
        bytes=file.num_bytes,
        xxh3=file.checksum,
        rows=count["rows"],
        tokens=count["tokens"] if LENGTHS in schema.names else None,
        trained_tokens=count["trained"] if is_chats else msgspec.UNSET,
        tasks=tasks,
    )


def _replace_file_ids(batch: pa.RecordBatch, new_files: dict[int, int]) -> pa.RecordBatch:
    """The batch with other ids of input files in its origins."""
    name = ORIGINS if ORIGINS in batch.schema.names else ORIGIN
    index = batch.schema.get_field_index(name)
    column = batch.column(index)
    origin = column.values if name == ORIGINS else column
    ids: NDArray[np.uint64] = origin.field("file").to_numpy(zero_copy_only=False).copy()
    for old in np.unique(ids).tolist():
        if old in new_files:
            ids[ids == old] = new_files[old]
    fields = [pa.array(ids), origin.field("position"), origin.field("part")]
    changed = pa.StructArray.from_arrays(fields, fields=list(origin.type))
    if name == ORIGINS:
        changed = pa.ListArray.from_arrays(column.offsets, changed).cast(column.type)
    return batch.set_column(index, batch.schema.field(index), changed)
