"""Where a task's records go: for each split a file of blocks, which is a complete shard where the task is a whole unit.

A block holds what came of one input cell, encoded on its own, so files may be cut or joined between blocks without
changing a byte inside them. That is why the size of tasks never shows in the output. Rows of packed tokens are the
exception: their documents are kept as they are until the unit is whole (`packing`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import INPUT_IDS, ORIGIN, SPLIT
from gristmill.core.splits import TRAIN
from gristmill.shards.arrow_stream import origins_block, origins_footer, origins_header
from gristmill.shards.canonical import canonical_schema
from gristmill.shards.formats.arrow import ArrowEncoder
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.shards.formats.tar import TarEncoder
from gristmill.shards.manifest import StoredFile
from gristmill.shards.token_rows import (
    LENGTHS,
    ORIGINS,
    is_masked,
    make_document_rows,
    num_tokens,
    num_trained_tokens,
    shard_schema,
)
from gristmill.storage.commit import PendingFile
from gristmill.storage.stored_paths import Count, StoredName  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gristmill.core.books import Account
    from gristmill.shards.formats.base import Encoder
    from gristmill.steps.write import Write


class SplitFile(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one split on disk: a complete shard, or blocks that wait to be joined into one."""

    split: StoredName
    rows: Count
    tokens: Count = 0
    """In rows of tokens, without padding."""
    trained_tokens: Count = 0
    data: StoredFile
    data_blocks: list[Count]
    """Bytes of each block, without header and footer."""
    row_blocks: list[Count]
    token_blocks: list[Count] = []
    """Empty where there are no tokens."""
    trained_blocks: list[Count] = []
    """Empty where there are no chats."""
    origins: StoredFile | None = None
    origins_blocks: list[Count] = []


class RecordSink:
    """Takes the batches of one task, cell by cell; `place` is where its files go.

    Without `write` it keeps batches for a later leg: for each split an Arrow stream, in which the split stays a column.
    `holds_train`: what is for training waits in a file of its own to be interleaved with other sources, and the rest is
    written.
    """

    def __init__(
        self, write: Write | None, schema: pa.Schema, place: OutputStem, *, complete: bool, holds_train: bool = False
    ) -> None:
        self._separates = write is not None
        is_rows = ORIGINS in schema.names and ORIGIN not in schema.names
        self._makes_rows = write is not None and INPUT_IDS in schema.names and not is_rows
        self._held: SplitFileWriter | None = None
        if write is None:
            encoder: Encoder = ArrowEncoder(canonical_schema(schema))
        else:
            written = schema if is_rows else shard_schema(schema, None)
            encoder = open_encoder(write.shard_format, written)
            if holds_train:
                self._held = _open_held_writer(written, place)
        # A shard that is joined later is cut later.
        max_bytes = write.max_shard_bytes if write is not None and complete else float("inf")
        max_rows = write.max_shard_samples if write is not None and complete else None
        self._parts = SplitFileWriter(encoder, place, complete=complete, max_bytes=max_bytes, max_rows=max_rows)

    def __enter__(self) -> RecordSink:
        for writer in self._writers():
            writer.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for writer in self._writers():
            writer.__exit__()

    def add(self, batch: pa.RecordBatch) -> None:
        """The records of one cell."""
        for split, records in group_by_split(batch, keep_column=not self._separates):
            writer = self._held if self._held is not None and split == TRAIN else self._parts
            writer.add(split, make_document_rows(records) if self._makes_rows else records)

    def commit(self) -> SinkResult:
        """Sync and name all files."""
        return SinkResult(self._parts.commit(), held_files=self._held.commit() if self._held is not None else [])

    def _writers(self) -> Iterator[SplitFileWriter]:
        yield self._parts
        if self._held is not None:
            yield self._held


def _open_held_writer(schema: pa.Schema, place: OutputStem) -> SplitFileWriter:
    """For records as they will be written; notes on their fields differ from source to source, and are not needed."""
    fields = [field.remove_metadata() for field in schema if field.name != SPLIT]
    return SplitFileWriter(
        ArrowEncoder(canonical_schema(pa.schema(fields))), replace(place, stem=f"{place.stem}-held"), complete=True
    )


@dataclass(frozen=True, slots=True)
class SinkResult:
    """What a sink has made of a task's records."""

    split_files: list[SplitFile]
    leftovers: list[SplitFile] = field(default_factory=list)
    """Documents of rows that others are to fill (`packing`)."""
    accounts: list[Account] = field(default_factory=list)
    """Of the steps that the sink itself has done."""
    held_files: list[SplitFile] = field(default_factory=list)
    """Records for training that wait to be interleaved."""


@dataclass(frozen=True, slots=True)
class OutputStem:
    """Where a task's files go."""

    root: Path
    """The output folder."""
    stem: str
    """The start of their paths below it."""
    run_id: str


class SplitFileWriter:
    """Writes blocks of several splits, each to its own files."""

    def __init__(
        self,
        encoder: Encoder,
        place: OutputStem,
        *,
        complete: bool,
        max_bytes: float = float("inf"),
        max_rows: int | None = None,
    ) -> None:
        self.encoder = encoder
        self.place = place
        # Parquet cannot be joined from blocks, so even a whole unit waits for that.
        self.complete = complete and encoder.concatenates
        self.files = ExitStack()
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._open: dict[str, _OpenSplitFile] = {}
        self._parts: list[SplitFile] = []

    def __enter__(self) -> SplitFileWriter:
        self.files.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.files.__exit__(None, None, None)

    def add(self, split: str, records: pa.RecordBatch) -> None:
        """One block, or several where a shard is full in the middle of it."""
        start = 0
        while start < records.num_rows:
            part = self._open.get(split)
            if part is None:
                name = f"{self.place.stem}-{split}-{len(self._parts)}"
                part = self._open[split] = _OpenSplitFile(self, split, name)
            count = records.num_rows - start
            if self._max_rows is not None:
                count = min(count, self._max_rows - part.num_rows)
            part.add(records.slice(start, count))
            start += count
            if part.num_bytes >= self._max_bytes or part.num_rows == self._max_rows:
                self._parts.append(self._open.pop(split).commit())

    def commit(self) -> list[SplitFile]:
        """Sync and name all files."""
        self._parts += [self._open[split].commit() for split in sorted(self._open)]
        self._open.clear()
        return self._parts


class _OpenSplitFile:
    def __init__(self, writer: SplitFileWriter, split: str, name: str) -> None:
        self._split = split
        self._encoder = encoder = writer.encoder
        self._row_blocks: list[int] = []
        self._token_blocks: list[int] = []
        self._trained_blocks: list[int] = []
        self._key: str | None = None
        """Of a tar: that of the last sample."""
        header, footer = (encoder.header(), encoder.footer()) if writer.complete else (b"", b"")
        self._data = _BlockFile(writer, name + encoder.suffix, header, footer)
        self._origins: _BlockFile | None = None
        if not encoder.holds_origins:
            header, footer = (origins_header(), origins_footer()) if writer.complete else (b"", b"")
            self._origins = _BlockFile(writer, name + ".origins.arrow", header, footer)

    @property
    def num_rows(self) -> int:
        return sum(self._row_blocks)

    @property
    def num_bytes(self) -> int:
        """Of the blocks, as in joining."""
        return sum(self._data.blocks)

    def add(self, records: pa.RecordBatch) -> None:
        self._row_blocks.append(records.num_rows)
        if LENGTHS in records.schema.names and INPUT_IDS in records.schema.names:
            self._token_blocks.append(num_tokens(records))
            if is_masked(records.schema):
                self._trained_blocks.append(num_trained_tokens(records))
        if isinstance(self._encoder, TarEncoder):
            block, self._key = self._encoder.block_after(records, self._key)
        else:
            block = self._encoder.block(records)
        self._data.add(block)
        if self._origins is not None:
            self._origins.add(origins_block(records))

    def commit(self) -> SplitFile:
        origins = self._origins
        return SplitFile(
            split=self._split,
            rows=sum(self._row_blocks),
            tokens=sum(self._token_blocks),
            trained_tokens=sum(self._trained_blocks),
            data=self._data.commit(),
            data_blocks=self._data.blocks,
            row_blocks=self._row_blocks,
            token_blocks=self._token_blocks,
            trained_blocks=self._trained_blocks,
            origins=origins.commit() if origins is not None else None,
            origins_blocks=origins.blocks if origins is not None else [],
        )


class _BlockFile:
    def __init__(self, writer: SplitFileWriter, path: str, header: bytes, footer: bytes) -> None:
        self._path = path
        place = writer.place
        self._file = writer.files.enter_context(PendingFile(place.root / path, place.run_id))
        self._footer = footer
        self.blocks: list[int] = []
        self._file.write(header)

    def add(self, block: bytes) -> None:
        self.blocks.append(len(block))
        self._file.write(block)

    def commit(self) -> StoredFile:
        self._file.write(self._footer)
        self._file.commit()
        return StoredFile(path=self._path, bytes=self._file.num_bytes, xxh3=self._file.checksum)


def group_by_split(
    batch: pa.RecordBatch, otherwise: str = TRAIN, *, keep_column: bool = False
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch's records by the split they belong to, in their order; no empty batches."""
    if not batch.num_rows:
        return
    if SPLIT not in batch.schema.names:
        yield otherwise, batch
        return
    splits = batch.column(SPLIT)
    rest = batch if keep_column else batch.drop_columns([SPLIT])
    for split in sorted(pc.unique(splits).to_pylist()):
        yield split, rest.filter(pc.equal(splits, split))
