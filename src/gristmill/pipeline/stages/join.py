"""Parts of a unit joined into its shards: the blocks one after another, cut where a shard is full.

The same blocks in the same order give the same shards, whatever the parts were. Joined blocks are copied, not decoded;
Parquet, which cannot be joined, is encoded here from Arrow blocks.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.books import add_books
from gristmill.pipeline.stages.packing import PackingSink
from gristmill.pipeline.stages.sink import OutputStem, RecordSink, SinkResult, SplitFile
from gristmill.pipeline.stages.slice_task import SliceResult
from gristmill.pipeline.stages.stored import StoredInput
from gristmill.shards.arrow_stream import origins_footer, origins_header
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.shards.manifest import StoredFile
from gristmill.shards.token_rows import shard_schema
from gristmill.storage.commit import PendingFile
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.slice_task import StageContext
    from gristmill.shards.formats.base import Encoder
    from gristmill.steps.write import Write


@dataclass(frozen=True, slots=True)
class JoinTask:
    """The parts of one unit, in order."""

    source: str
    results: tuple[SliceResult, ...]
    stem: str
    is_tail: bool = False
    """They are what packed units have left over: no row is kept back for others."""


@dataclass(frozen=True, slots=True)
class _Block:
    """One cell's records in a file of blocks."""

    rows: int
    tokens: int
    trained_tokens: int
    path: str
    start: int
    size: int
    origins: tuple[str, int, int] | None
    """Path, start and size of their origins."""


def run_join(task: Task, context: Context) -> SliceResult:
    """The function of joining tasks; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    join: JoinTask = task.payload
    leg = stage.sources[join.source]
    if leg.write is None:
        raise ValueError("what a later leg reads is not joined")
    if leg.pack is not None:
        place = OutputStem(stage.root, join.stem, stage.run_id)
        sink = PackingSink(leg.pack, leg.pad_id, leg.write, place, last=join.is_tail, holds_train=leg.holds_train)
        return _pack_documents(join, sink)
    if leg.write.needs_sequence(leg.output_schema):
        place = OutputStem(stage.root, join.stem, stage.run_id)
        return _rewrite_records(
            join,
            stage.root,
            RecordSink(leg.write, leg.output_schema, place, complete=True, holds_train=leg.holds_train),
        )
    joiner = _Joiner(stage.root, stage.run_id, leg.write, shard_schema(leg.output_schema, None))
    parts: list[SplitFile] = []
    for split in sorted({part.split for result in join.results for part in result.split_files}):
        blocks = [
            block
            for result in join.results
            for part in result.split_files
            if part.split == split
            for block in _locate_blocks(part)
        ]
        for number, shard in enumerate(_cut_into_shards(blocks, leg.write.max_shard_bytes)):
            parts.append(joiner.join(split, f"{join.stem}-{split}-{number}", shard))
    return merge_results(join.results, SinkResult(parts))


def _pack_documents(join: JoinTask, sink: PackingSink) -> SliceResult:
    """Rows from the documents of all parts."""
    with sink:
        for result in join.results:
            for part in result.split_files:
                for batch in StoredInput(part.data.path, part.rows).batches(sink.place.root):
                    sink.add(batch, part.split)
        return merge_results(join.results, sink.commit())


def _rewrite_records(join: JoinTask, root: Path, sink: RecordSink) -> SliceResult:
    """Shards from the records of all parts, one after the other."""
    with sink:
        for result in join.results:
            for part in result.split_files:
                for batch in StoredInput(part.data.path, part.rows).batches(root):
                    sink.add(batch)
        return merge_results(join.results, sink.commit())


def merge_results(results: Sequence[SliceResult], written: SinkResult) -> SliceResult:
    """The account of a unit from those of its tasks, with what became of their files."""
    books = add_books(result.books for result in results)
    return SliceResult(
        split_files=written.split_files,
        held_files=[part for result in results for part in result.held_files] + written.held_files,
        leftovers=written.leftovers,
        books=[*books, *written.accounts],
        quarantine=[file for result in results for file in result.quarantine],
        dropped=[file for result in results for file in result.dropped],
    )


def _locate_blocks(part: SplitFile) -> Iterator[_Block]:
    start = origins_start = 0
    for number, (rows, size) in enumerate(zip(part.row_blocks, part.data_blocks, strict=True)):
        origins = None
        if part.origins is not None:
            origins = (part.origins.path, origins_start, part.origins_blocks[number])
            origins_start += part.origins_blocks[number]
        tokens, trained = (blocks[number] if blocks else 0 for blocks in (part.token_blocks, part.trained_blocks))
        yield _Block(rows, tokens, trained, part.data.path, start, size, origins)
        start += size


def _cut_into_shards(blocks: Sequence[_Block], max_bytes: int) -> Iterator[list[_Block]]:
    shard: list[_Block] = []
    size = 0
    for block in blocks:
        shard.append(block)
        size += block.size
        if size >= max_bytes:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


class _Joiner:
    def __init__(self, root: Path, run_id: str, write: Write, schema: pa.Schema) -> None:
        self._root = root
        self._run_id = run_id
        self._write = write
        self._schema = schema
        self._encoder: Encoder = open_encoder(write.shard_format, schema)

    def join(self, split: str, stem: str, blocks: list[_Block]) -> SplitFile:
        places = [(block.path, block.start, block.size) for block in blocks]
        data = self._write_file(stem + self._encoder.suffix, places, self._encoder.header(), self._encoder.footer())
        origins = [block.origins for block in blocks if block.origins is not None]
        side = (
            self._write_file(stem + ".origins.arrow", origins, origins_header(), origins_footer()) if origins else None
        )
        return SplitFile(
            split=split,
            rows=sum(block.rows for block in blocks),
            tokens=sum(block.tokens for block in blocks),
            trained_tokens=sum(block.trained_tokens for block in blocks),
            data=data,
            data_blocks=[],
            row_blocks=[],
            origins=side,
        )

    def _write_file(
        self, path: str, places: Sequence[tuple[str, int, int]], header: bytes, footer: bytes
    ) -> StoredFile:
        with PendingFile(self._root / path, self._run_id) as file:
            if self._encoder.concatenates or path.endswith(".origins.arrow"):
                file.write(header)
                for block in self._read_blocks(places):
                    file.write(block)
                file.write(footer)
            else:
                batches = self._decode_blocks(places, header, footer)
                write_shard(self._write.shard_format, self._schema, batches, file)
            file.commit()
        return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)

    def _read_blocks(self, places: Sequence[tuple[str, int, int]]) -> Iterator[bytes]:
        with ExitStack() as stack:
            files: dict[str, io.BufferedReader] = {}
            for path, start, size in places:
                if path not in files:
                    files[path] = stack.enter_context(path_below(self._root, path).open("rb"))
                files[path].seek(start)
                yield files[path].read(size)

    def _decode_blocks(
        self, places: Sequence[tuple[str, int, int]], header: bytes, footer: bytes
    ) -> Iterator[pa.RecordBatch]:
        for block in self._read_blocks(places):
            yield from pa.ipc.open_stream(pa.py_buffer(header + block + footer))
