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

Joining is a separate task in a worker, except for `StoredStreams`, where nothing needs to be written. The same blocks
in the same order give the same shards, however many slices they come from. Memory: one block at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import pyarrow as pa

from gristmill.core.records import RECORD
from gristmill.pipeline.stages.outputs.sinks import (
    SinkResult,
    find_shard_schema,
    open_block_sink,
    open_shard_sink,
    open_stream_sink,
)
from gristmill.pipeline.stages.outputs.split_files import ORIGINS_SUFFIX, SplitFile
from gristmill.pipeline.stages.stored import StoredInput, read_streams
from gristmill.shards.block_index import decode_costs, encode_costs
from gristmill.shards.canonical import origins_footer, origins_header
from gristmill.shards.formats.base import has_sample_sizes
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.shards.stored_files import StoredFile, StoredRange
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.core.books import Account
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.sinks import PackingSink, Sink
    from gristmill.pipeline.stages.outputs.split_files import Annotator, OutputStem
    from gristmill.shards.formats.base import Encoder
    from gristmill.steps.pack import Pack
    from gristmill.steps.write import Write
    from gristmill.storage.locations import Location


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


class _Output:
    """A base with what most outputs have in common."""

    @property
    def needs_text(self) -> bool:
        return True

    @property
    def is_intermediate(self) -> bool:
        return False

    @property
    def leftover_output(self) -> PackedRows | None:
        return None

    def make_empty_accounts(self) -> list[Account]:
        return []


@dataclass(frozen=True, slots=True)
class StoredStreams(_Output):
    """Arrow streams in the work folder, for the next stage. It reads the streams of all slices one after another."""

    schema: pa.Schema
    annotator: Annotator | None = None
    """Notes what the barrier after the stage has to know, while the records are at hand."""

    @property
    def is_intermediate(self) -> bool:
        return True

    def needs_join(self, num_slices: int) -> bool:  # noqa: ARG002  (part of `UnitOutput`)
        return False

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:  # noqa: ARG002
        return open_stream_sink(self.schema, stem, self.annotator)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:  # noqa: ARG002
        return SinkResult(list(files))


@dataclass(frozen=True, slots=True)
class _Shards(_Output):
    """The base of the outputs that write shards of documents."""

    write: Write
    schema: pa.Schema
    holds_train: bool = False
    """Whether training records wait to be interleaved with those of other sources (`mixed_lane`)."""


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
                for batch in StoredInput(file.data, file.rows).batches(stem.root):
                    sink.add(batch)
            return sink.commit()


@dataclass(frozen=True, slots=True)
class PackedRows(_Output):
    """Shards of packed rows. Which documents share a row depends on all documents of the unit."""

    pack: Pack
    pad_id: int
    write: Write
    schema: pa.Schema
    holds_train: bool = False
    """Whether training rows wait to be interleaved with those of other sources (`mixed_lane`)."""
    packs_leftovers: bool = False
    """Whether the documents are leftovers of units, so that none of them is kept back again."""

    def needs_join(self, num_slices: int) -> bool:
        return num_slices > 1

    def open_sink(self, stem: OutputStem, num_slices: int) -> Sink:
        return open_stream_sink(self.schema, stem) if self.needs_join(num_slices) else self._open_packing_sink(stem)

    def join(self, files: Sequence[SplitFile], stem: OutputStem) -> SinkResult:
        with self._open_packing_sink(stem) as sink:
            streams = [StoredInput(file.data, file.rows) for file in files]
            for file, batches in zip(files, read_streams(streams, stem.root), strict=True):
                for batch in batches:
                    sink.add(batch, file.split)  # leftovers have no column that names the split
            return sink.commit()

    def make_empty_accounts(self) -> list[Account]:
        from gristmill.pipeline.stages.outputs.sinks import make_empty_account  # noqa: PLC0415

        return [make_empty_account(self.pack)]

    @property
    def leftover_output(self) -> PackedRows | None:
        return replace(self, packs_leftovers=True)

    def _open_packing_sink(self, stem: OutputStem) -> PackingSink:
        from gristmill.pipeline.stages.outputs.sinks import PackingSink  # noqa: PLC0415  (only for rows of tokens)

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


@dataclass(frozen=True, slots=True)
class _Block:
    """The records of one cell in a file of blocks."""

    rows: int
    tokens: int
    trained_tokens: int
    data: StoredRange
    costs: NDArray[np.uint64]
    """The attention cost of each row of tokens."""
    origins: StoredRange | None


def join_blocks(
    files: Sequence[SplitFile],
    stem: OutputStem,
    suffix: str,
    max_bytes: int,
    write_data: Callable[[Iterator[bytes], PendingFile], None],
    *,
    header_bytes: int | None,
    has_sizes: bool = False,
) -> list[SplitFile]:
    """Join the files of all slices of a unit into shards; `has_sizes`: their side files are indexes of samples.

    Blocks are copied after a header of `header_bytes`; None: they are encoded again, so that the whole is one block.
    `write_data` writes the blocks of one shard to its file. A shard ends with the block that brings it to `max_bytes`,
    as it does where a single slice writes it (`SplitFileWriter`): otherwise the bytes would depend on the slices.
    """
    shards = []
    write_origins = partial(_write_origins, has_sizes=has_sizes)
    for split in sorted({file.split for file in files}):
        blocks = [block for file in files if file.split == split for block in _locate_blocks(file)]
        for number, shard_blocks in enumerate(_cut_into_shards(blocks, max_bytes)):
            name_file = partial(stem.name_file, split, number, is_shard=True)
            data = _write_file(stem, name_file(suffix), [block.data for block in shard_blocks], write_data)
            origins = [block.origins for block in shard_blocks if block.origins is not None]
            shards.append(
                SplitFile(
                    split=split,
                    rows=sum(block.rows for block in shard_blocks),
                    tokens=sum(block.tokens for block in shard_blocks),
                    trained_tokens=sum(block.trained_tokens for block in shard_blocks),
                    data=data,
                    **_describe_blocks(shard_blocks, data, header_bytes),
                    origins=_write_file(stem, name_file(ORIGINS_SUFFIX), origins, write_origins) if origins else None,
                )
            )
    return shards


def write_framed(encoder: Encoder, blocks: Iterable[bytes], file: PendingFile) -> None:
    """Write blocks between the header and the footer of their format."""
    file.write(encoder.header())
    for block in blocks:
        file.write(block)
    file.write(encoder.footer())


def decode_blocks(encoder: Encoder, blocks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Decode blocks of an encoder whose blocks are Arrow."""
    for block in blocks:
        yield from pa.ipc.open_stream(pa.py_buffer(encoder.header() + block + encoder.footer()))


def _describe_blocks(blocks: Sequence[_Block], data: StoredFile, header_bytes: int | None) -> dict[str, Any]:
    """Describe the blocks of a shard, as fields of its `SplitFile`."""
    rows = [block.rows for block in blocks]
    if header_bytes is None:
        return {"data_blocks": [data.bytes], "row_blocks": [sum(rows)], "block_checksums": [int(data.xxh3, 16)]}
    return {
        "first_block": header_bytes,
        "data_blocks": [block.data.num_bytes for block in blocks],
        "row_blocks": rows,
        "block_checksums": [block.data.checksum for block in blocks],
        "row_costs": encode_costs([block.costs for block in blocks]),
    }


def _write_origins(blocks: Iterator[bytes], file: PendingFile, *, has_sizes: bool) -> None:
    file.write(origins_header(has_sizes=has_sizes))
    for block in blocks:
        file.write(block)
    file.write(origins_footer())


def _locate_blocks(file: SplitFile) -> Iterator[_Block]:
    start = origins_start = row = 0
    costs = decode_costs(file.row_costs, file.rows)
    for number, (rows, size) in enumerate(zip(file.row_blocks, file.data_blocks, strict=True)):
        origins = None
        if file.origins is not None:
            origins = StoredRange(
                file=file.origins,
                start=origins_start,
                num_bytes=file.origins_blocks[number],
                checksum=file.origins_checksums[number],
            )
            origins_start += origins.num_bytes
        tokens, trained = (counts[number] if counts else 0 for counts in (file.token_blocks, file.trained_blocks))
        yield _Block(
            rows=rows,
            tokens=tokens,
            trained_tokens=trained,
            data=StoredRange(file=file.data, start=start, num_bytes=size, checksum=file.block_checksums[number]),
            costs=costs[row : row + rows],
            origins=origins,
        )
        start += size
        row += rows


def _cut_into_shards(blocks: Sequence[_Block], max_bytes: int) -> Iterator[list[_Block]]:
    shard: list[_Block] = []
    size = 0
    for block in blocks:
        shard.append(block)
        # Data only: a header or an origin in the sum would move the borders between shards, and so change bytes.
        size += block.data.num_bytes
        if size >= max_bytes:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _write_file(
    stem: OutputStem,
    path: str,
    ranges: Sequence[StoredRange],
    write_data: Callable[[Iterator[bytes], PendingFile], None],
) -> StoredFile:
    with PendingFile(stem.root / path, stem.run_id) as file:
        write_data(_read_blocks(stem.root, ranges), file)
        file.commit(sync=stem.syncs)
    return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)


def _read_blocks(root: Location, ranges: Sequence[StoredRange]) -> Iterator[bytes]:
    with ExitStack() as stack:
        # The blocks of a file follow one another, but a shard may begin in the middle of one: keep each file open.
        files: dict[str, BinaryIO] = {}
        for block in ranges:
            try:
                file = files.get(block.file.path)
                if file is None:
                    file = files[block.file.path] = stack.enter_context(block.file.below(root).open("rb"))
                file.seek(block.start)
                content = file.read(block.num_bytes)
            except FileNotFoundError:
                raise block.file.make_work_error(root, "is missing") from None
            block.check_content(root, content)
            yield content
