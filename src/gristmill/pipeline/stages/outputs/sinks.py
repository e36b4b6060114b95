"""Sinks: where the records of one task go, cell by cell.

A `RecordSink` writes one block for each cell. What kind of file the blocks are in is chosen by who opens it: streams
that a later stage reads, whole shards, or bare blocks that are joined later. Rows of packed tokens are the exception:
they are made when all documents of a unit are there (`packing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from gristmill.core.records import INPUT_IDS, ORIGIN, SPLIT
from gristmill.core.splits import TRAIN
from gristmill.pipeline.stages.outputs.split_files import SplitFileWriter, group_by_split
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.formats.arrow import ArrowEncoder
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.shards.token_rows import ORIGINS, make_document_rows, shard_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.books import Account
    from gristmill.pipeline.stages.outputs.split_files import Annotator, OutputStem, SplitFile
    from gristmill.steps.write import Write


@dataclass(frozen=True, slots=True)
class SinkResult:
    """The files that a sink has made of the records."""

    split_files: list[SplitFile]
    leftovers: list[SplitFile] = field(default_factory=list)
    """Documents of rows that documents of other units are to fill (`packing`)."""
    accounts: list[Account] = field(default_factory=list)
    """Accounts of the steps that the sink itself has run."""
    held_files: list[SplitFile] = field(default_factory=list)
    """Training records that wait to be interleaved with those of other sources (`mixed_lane`)."""


class Sink(Protocol):
    """Takes records and makes files of them. Leaving it without `commit` leaves no file."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the records of one cell."""

    def commit(self) -> SinkResult:
        """Give all files their names."""


class RecordSink:
    """Writes the records of each split to their own files, one block for each cell.

    Training records go to `held_writer`, if there is one.
    """

    def __init__(
        self,
        writer: SplitFileWriter,
        held_writer: SplitFileWriter | None = None,
        *,
        keeps_split_column: bool = False,
        makes_rows: bool = False,
    ) -> None:
        self._writer = writer
        self._held = held_writer
        self._keeps_split_column = keeps_split_column
        self._makes_rows = makes_rows

    def __enter__(self) -> Self:
        for writer in self._writers():
            writer.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for writer in self._writers():
            writer.__exit__()

    def add(self, batch: pa.RecordBatch) -> None:
        for split, records in group_by_split(batch, keep_column=self._keeps_split_column):
            writer = self._held if self._held is not None and split == TRAIN else self._writer
            writer.add(split, make_document_rows(records) if self._makes_rows else records)

    def commit(self) -> SinkResult:
        held_files = self._held.commit() if self._held is not None else []
        return SinkResult(self._writer.commit(), held_files=held_files)

    def _writers(self) -> Iterator[SplitFileWriter]:
        yield self._writer
        if self._held is not None:
            yield self._held


def open_stream_sink(
    schema: pa.Schema,
    stem: OutputStem,
    annotator: Annotator | None = None,
    *,
    framed: bool = True,
    reads_again: bool = False,
) -> RecordSink:
    """Keep records for later: for each split an Arrow stream, in which the split stays a column.

    With `reads_again` only the sizes of texts and records are kept.
    """
    if reads_again:
        from gristmill.pipeline.stages.outputs.content_sizes import open_sizes_encoder  # noqa: PLC0415  (few recipes)

        encoder: ArrowEncoder = open_sizes_encoder(schema)
    else:
        encoder = ArrowEncoder(canonicalize_schema(schema))
    return RecordSink(SplitFileWriter(encoder, stem, framed=framed, annotator=annotator), keeps_split_column=True)


def open_shard_sink(write: Write, schema: pa.Schema, stem: OutputStem, *, holds_train: bool) -> RecordSink:
    """Write whole shards, each of at most the size that the recipe allows."""
    encoder = open_encoder(write.shard_format, find_shard_schema(schema))
    writer = SplitFileWriter(
        encoder, stem, max_bytes=write.max_shard_bytes, max_rows=write.max_shard_samples, is_final=True
    )
    return _make_written_sink(writer, schema, holds_train=holds_train)


def open_block_sink(write: Write, schema: pa.Schema, stem: OutputStem, *, holds_train: bool) -> RecordSink:
    """Write bare blocks of shards. They are cut into shards when they are joined."""
    writer = SplitFileWriter(open_encoder(write.shard_format, find_shard_schema(schema)), stem, framed=False)
    return _make_written_sink(writer, schema, holds_train=holds_train)


def find_shard_schema(schema: pa.Schema) -> pa.Schema:
    """Find the columns of shards for records with these columns, where each record becomes at most one row."""
    return schema if _holds_rows(schema) else shard_schema(schema, None)


def _holds_rows(schema: pa.Schema) -> bool:
    """Tell whether the records are rows of tokens already, made of documents whose origins they list."""
    return ORIGINS in schema.names and ORIGIN not in schema.names


def _make_written_sink(writer: SplitFileWriter, schema: pa.Schema, *, holds_train: bool) -> RecordSink:
    held_writer = _open_held_writer(find_shard_schema(schema), writer.stem) if holds_train else None
    return RecordSink(writer, held_writer, makes_rows=INPUT_IDS in schema.names and not _holds_rows(schema))


def _open_held_writer(schema: pa.Schema, stem: OutputStem) -> SplitFileWriter:
    """Open a writer for records as they will be written, in streams that all sources have in common.

    Metadata of fields differs from source to source, and is not needed.
    """
    fields = [field.remove_metadata() for field in schema if field.name != SPLIT]
    return SplitFileWriter(
        ArrowEncoder(canonicalize_schema(pa.schema(fields))), replace(stem, stem=f"{stem.stem}-held", source=None)
    )
