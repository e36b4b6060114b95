"""Where a task's records go: for each split a file of blocks, which is a complete shard where the task is a whole unit.

A block holds what came of one input cell, encoded on its own, so files may be cut or joined between blocks without
changing a byte inside them. That is why the size of tasks never shows in the output.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import SPLIT
from gristmill.shards.canonical import canonical_schema
from gristmill.shards.manifest import StoredFile
from gristmill.steps.write import open_encoder, origins_block, origins_footer, origins_header
from gristmill.steps.write.arrow import ArrowEncoder
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gristmill.steps.write import Encoder, Write

ONLY_SPLIT = "train"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one split on disk: a complete shard, or blocks that wait to be joined into one."""

    split: str
    rows: int
    data: StoredFile
    data_blocks: list[int]
    """Bytes of each block, without header and footer."""
    row_blocks: list[int]
    origins: StoredFile | None = None
    origins_blocks: list[int] = []


class Sink:
    """Takes the batches of one task, cell by cell. `root` is the output folder, `stem` the path of its files below it.

    Without `write` it keeps batches for a later leg: one Arrow stream, the split a column like others.
    """

    def __init__(
        self, write: Write | None, schema: pa.Schema, root: Path, stem: str, run_id: str, *, complete: bool
    ) -> None:
        self._encoder = ArrowEncoder(canonical_schema(schema)) if write is None else open_encoder(write, schema)
        self._separates = write is not None
        # A shard that is joined later is cut later.
        self._max_bytes = write.max_shard_bytes if write is not None and complete else float("inf")
        self._root = root
        self._stem = stem
        self._run_id = run_id
        # Parquet cannot be joined from blocks, so even a whole unit waits for that.
        self._complete = complete and self._encoder.concatenates
        self._files = ExitStack()
        self._open: dict[str, _OpenPart] = {}
        self._parts: list[Part] = []

    def __enter__(self) -> Sink:
        self._files.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._files.__exit__(None, None, None)

    def add(self, batch: pa.RecordBatch) -> None:
        """The records of one cell."""
        for split, records in by_split(batch) if self._separates else _as_one(batch):
            part = self._open.get(split)
            if part is None:
                name = f"{self._stem}-{split}-{len(self._parts)}"
                part = self._open[split] = _OpenPart(self, split, name)
            part.add(records)
            if part.num_bytes >= self._max_bytes:
                self._parts.append(self._open.pop(split).commit())

    def commit(self) -> list[Part]:
        """Sync and name all files."""
        self._parts += [self._open[split].commit() for split in sorted(self._open)]
        self._open.clear()
        return self._parts


class _OpenPart:
    def __init__(self, sink: Sink, split: str, name: str) -> None:
        self._split = split
        self._encoder: Encoder = sink._encoder
        self._row_blocks: list[int] = []
        encoder = sink._encoder
        complete = sink._complete
        self._data = _BlockFile(
            sink, name + encoder.suffix, encoder.header() if complete else b"", encoder.footer() if complete else b""
        )
        self._origins: _BlockFile | None = None
        if not encoder.holds_origins:
            header, footer = (origins_header(), origins_footer()) if complete else (b"", b"")
            self._origins = _BlockFile(sink, name + ".origins.arrow", header, footer)

    @property
    def num_bytes(self) -> int:
        """Of the blocks, as in joining."""
        return sum(self._data.blocks)

    def add(self, records: pa.RecordBatch) -> None:
        self._row_blocks.append(records.num_rows)
        self._data.add(self._encoder.block(records))
        if self._origins is not None:
            self._origins.add(origins_block(records))

    def commit(self) -> Part:
        origins = self._origins
        return Part(
            split=self._split,
            rows=sum(self._row_blocks),
            data=self._data.commit(),
            data_blocks=self._data.blocks,
            row_blocks=self._row_blocks,
            origins=origins.commit() if origins is not None else None,
            origins_blocks=origins.blocks if origins is not None else [],
        )


class _BlockFile:
    def __init__(self, sink: Sink, path: str, header: bytes, footer: bytes) -> None:
        self._path = path
        self._file = sink._files.enter_context(PendingFile(sink._root / path, sink._run_id))
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


def by_split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch's records by the split they belong to, in their order; no empty batches."""
    if not batch.num_rows:
        return
    if SPLIT not in batch.schema.names:
        yield ONLY_SPLIT, batch
        return
    splits = batch.column(SPLIT)
    rest = batch.drop_columns([SPLIT])
    for split in sorted(pc.unique(splits).to_pylist()):
        yield split, rest.filter(pc.equal(splits, split))


def _as_one(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if batch.num_rows:
        yield ONLY_SPLIT, batch
