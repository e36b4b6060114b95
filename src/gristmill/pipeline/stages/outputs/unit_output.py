"""How the records of a unit become files: one strategy, chosen once for each source and stage.

A unit is run as one slice or as several; that depends on `slice_bytes`, and must not show in the output. A strategy
decides what a slice writes and how the files of several slices become those of the unit:

| strategy | for | a single slice writes | of several, each writes | joining |
|---|---|---|---|---|
| `StoredStreams` | a later stage | streams | streams | the streams of all slices, as they are |
| `JoinedBlocks` | most formats | shards | bare blocks | blocks are copied |
| `ReencodedParquet` | Parquet | bare blocks | bare blocks | blocks are decoded and written as Parquet |
| `RewrittenRecords` | tars with keys or a number of samples | shards | streams | records are written in order |
| `PackedRows` | packed tokens | shards | streams | documents are packed |

Joining is a task of its own in a worker, except for `StoredStreams`, where nothing needs to be written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from gristmill.core.records import RECORD
from gristmill.pipeline.stages.outputs.join_blocks import decode_blocks, join_blocks, write_framed
from gristmill.pipeline.stages.outputs.sinks import (
    SinkResult,
    find_shard_schema,
    open_block_sink,
    open_shard_sink,
    open_stream_sink,
)
from gristmill.pipeline.stages.stored import StoredInput, read_streams
from gristmill.shards.formats.base import has_sample_sizes
from gristmill.shards.formats.shard_format import open_encoder, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from gristmill.core.books import Account
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.packing import PackingSink
    from gristmill.pipeline.stages.outputs.sinks import Sink
    from gristmill.pipeline.stages.outputs.split_files import Annotator, OutputStem, SplitFile
    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.write import Write
    from gristmill.storage.commit import PendingFile


class UnitOutput(Protocol):
    """The way in which the units of one source are written in one stage."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records, as they come out of the stage's steps."""

    @property
    def needs_text(self) -> bool:
        """Whether the texts must be a column of the records; if not, they are written as they were read."""

    @property
    def is_intermediate(self) -> bool:
        """Whether the files are for a later stage, and not for the dataset."""

    def needs_join(self, num_slices: int) -> bool:
        """Tell whether a unit of this many slices is written by a task that joins them."""

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:
        """Open the sink of one slice, in a worker; `num_slices` is the number of slices in its unit."""

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:
        """Make the unit's files from those of its slices, in order; called in a worker, if `needs_join`."""

    def make_empty_accounts(self) -> list[Account]:
        """Make the accounts of the steps that the output itself runs, for a stage without units."""

    @property
    def leftover_output(self) -> PackedRows | None:
        """How documents that units leave over are written; None: units leave nothing over."""


@dataclass(frozen=True, slots=True)
class StoredStreams:
    """Arrow streams in the work folder, for the next stage. It reads the streams of all slices one after another."""

    schema: pa.Schema
    annotator: Annotator | None = None
    """Notes what the barrier behind the stage has to know, while the records are at hand."""
    reads_again: bool = False
    """Whether the next stage reads texts and records from their files again, so that only their sizes are stored."""
    needs_text: ClassVar[bool] = True
    is_intermediate: ClassVar[bool] = True

    def needs_join(self, num_slices: int) -> bool:  # noqa: ARG002  (part of `UnitOutput`)
        return False

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:  # noqa: ARG002
        return open_stream_sink(self.schema, stem, self.annotator, reads_again=self.reads_again)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:  # noqa: ARG002
        return SinkResult(list(files))

    def make_empty_accounts(self) -> list[Account]:
        return []

    @property
    def leftover_output(self) -> PackedRows | None:
        return None


@dataclass(frozen=True, slots=True)
class _Shards:
    """The base of the outputs that write shards of documents."""

    write: Write
    schema: pa.Schema
    holds_train: bool = False
    """Whether training records wait to be interleaved with those of other sources (`mixed_lane`)."""
    is_intermediate: ClassVar[bool] = False

    @property
    def needs_text(self) -> bool:
        return True

    def make_empty_accounts(self) -> list[Account]:
        return []

    @property
    def leftover_output(self) -> PackedRows | None:
        return None


@dataclass(frozen=True, slots=True)
class JoinedBlocks(_Shards):
    """Shards of a format in which blocks can be copied from file to file."""

    @property
    def needs_text(self) -> bool:
        writes_records = self.write.shard_format.name == "jsonl" and RECORD in self.schema.names
        return self.holds_train or not writes_records

    def needs_join(self, num_slices: int) -> bool:
        return num_slices > 1

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:
        open_sink = open_block_sink if self.needs_join(num_slices) else open_shard_sink
        return open_sink(self.write, self.schema, stem, holds_train=self.holds_train)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:
        encoder = open_encoder(self.write.shard_format, find_shard_schema(self.schema))

        def write_data(blocks: Iterator[bytes], file: PendingFile) -> None:
            write_framed(encoder, blocks, file)

        return SinkResult(
            join_blocks(
                files,
                stem,
                encoder.suffix,
                self.write.max_shard_bytes,
                write_data,
                header_bytes=len(encoder.header()),
                has_sizes=has_sample_sizes(encoder),
            )
        )


@dataclass(frozen=True, slots=True)
class ReencodedParquet(_Shards):
    """Parquet shards. Row groups span cells, so even a single slice writes blocks, which are Arrow until the join."""

    def needs_join(self, num_slices: int) -> bool:  # noqa: ARG002  (part of `UnitOutput`)
        return True

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:  # noqa: ARG002
        return open_block_sink(self.write, self.schema, stem, holds_train=self.holds_train)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:
        schema = find_shard_schema(self.schema)
        encoder = open_encoder(self.write.shard_format, schema)

        def write_data(blocks: Iterator[bytes], file: PendingFile) -> None:
            write_shard(self.write.shard_format, schema, decode_blocks(encoder, blocks), file)

        max_bytes = self.write.max_shard_bytes
        return SinkResult(join_blocks(files, stem, encoder.suffix, max_bytes, write_data, header_bytes=None))


@dataclass(frozen=True, slots=True)
class RewrittenRecords(_Shards):
    """Shards that one writer must write from their first record to their last (`Write.needs_sequence`)."""

    def needs_join(self, num_slices: int) -> bool:
        return num_slices > 1

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:
        if self.needs_join(num_slices):
            return open_stream_sink(self.schema, stem)
        return open_shard_sink(self.write, self.schema, stem, holds_train=self.holds_train)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:
        with open_shard_sink(self.write, self.schema, stem, holds_train=self.holds_train) as sink:
            for file in files:
                for batch in StoredInput(file.data.path, file.rows).batches(stem.root):
                    sink.add(batch)
            return sink.commit()


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Shards of packed rows. Which documents share a row depends on all documents of the unit."""

    pack: Pack
    pad_id: int
    write: Write
    schema: pa.Schema
    holds_train: bool = False
    """Whether training rows wait to be interleaved with those of other sources (`mixed_lane`)."""
    packs_leftovers: bool = False
    """Whether the documents are leftovers of units, so that none of them is kept back again."""
    needs_text: ClassVar[bool] = True
    is_intermediate: ClassVar[bool] = False

    def needs_join(self, num_slices: int) -> bool:
        return num_slices > 1

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:
        return open_stream_sink(self.schema, stem) if self.needs_join(num_slices) else self._open_packing_sink(stem)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:
        with self._open_packing_sink(stem) as sink:
            streams = [StoredInput(file.data.path, file.rows) for file in files]
            for file, batches in zip(files, read_streams(streams, stem.root), strict=True):
                for batch in batches:
                    sink.add(batch, file.split)  # leftovers have no column that names the split
            return sink.commit()

    def make_empty_accounts(self) -> list[Account]:
        from gristmill.pipeline.stages.outputs.packing import make_empty_account  # noqa: PLC0415

        return [make_empty_account(self.pack)]

    @property
    def leftover_output(self) -> PackedRows | None:
        return replace(self, packs_leftovers=True)

    def _open_packing_sink(self, stem: OutputStem) -> PackingSink:
        from gristmill.pipeline.stages.outputs.packing import PackingSink  # noqa: PLC0415  (only for rows of tokens)

        return PackingSink(
            self.pack,
            self.pad_id,
            self.write,
            stem,
            packs_leftovers=self.packs_leftovers,
            holds_train=self.holds_train,
        )


def choose_final_output(plan: Plan, schema: pa.Schema) -> UnitOutput:
    """Choose how the last stage of a plan writes records with these columns."""
    if plan.pack is not None:
        return PackedRows(plan.pack, plan.pad_id, plan.write, schema, holds_train=plan.joins_sources)
    return choose_shard_output(plan.write, schema, holds_train=plan.joins_sources)


def choose_shard_output(write: Write, schema: pa.Schema, *, holds_train: bool = False) -> UnitOutput:
    """Choose how records are written one by one, by their format."""
    if write.needs_sequence(schema):
        return RewrittenRecords(write, schema, holds_train)
    if not open_encoder(write.shard_format, find_shard_schema(schema)).concatenates:
        return ReencodedParquet(write, schema, holds_train)
    return JoinedBlocks(write, schema, holds_train)
