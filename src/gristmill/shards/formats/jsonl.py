"""JSON Lines shards. Each block is a separate compressed frame; every tool reads the frames as one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.json_values import decode_json, is_json, to_json_values
from gristmill.core.records import ORIGIN, RECORD
from gristmill.storage.codecs import compress_frame, decompress, find_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gristmill.shards.formats.base import ShardRecord
    from gristmill.storage.codecs import Codec

_LINE_END = ord("\n")


@dataclass(frozen=True, slots=True)
class JsonlEncoder:
    """An `Encoder` of JSON lines, compressed or not."""

    schema: pa.Schema
    has_record: bool
    """Whether lines are the records as they were read; if not, they are made from the columns."""
    suffix: str
    codec: Codec | None
    concatenates: bool = True
    holds_origins: bool = False

    def header(self) -> bytes:
        return b""

    def block(self, batch: pa.RecordBatch) -> bytes | pa.Buffer:
        if not batch.num_rows:
            return b""
        if self.has_record:
            lines = _join_record_lines(batch.column(RECORD))
        else:
            names = [name for name in self.schema.names if name != ORIGIN]
            lines = msgspec.json.Encoder().encode_lines(to_json_rows(batch, names))
        return lines if self.codec is None else compress_frame(lines, self.codec)

    def footer(self) -> bytes:
        """Return an empty frame: tools refuse a compressed file of no bytes, as a shard without records would be."""
        return b"" if self.codec is None else compress_frame(b"", self.codec)


def to_json_rows(batch: pa.RecordBatch, names: Iterable[str]) -> Iterator[dict[str, object]]:
    """Make JSON objects of the rows of the named columns, with keys in the order of the names."""
    names = list(names)
    if not names:
        return iter([{} for _ in range(batch.num_rows)])
    columns = [to_json_values(batch.column(name), holds_json=is_json(batch.schema.field(name))) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def to_one_line(record: bytes) -> bytes:
    """Remove line breaks from a JSON text; they can only be between tokens."""
    return msgspec.json.format(record, indent=-1) if b"\n" in record else record


def _join_record_lines(records: pa.LargeBinaryArray) -> bytes | pa.Buffer:
    if records.null_count:
        raise UsageError(
            "a record to be written as it was read is missing",
            help=f"a function that makes new records must fill their column {RECORD!r}, or drop it",
        )
    ended = pc.binary_join_element_wise(records, pa.scalar(b"", records.type), pa.scalar(b"\n", records.type))
    # The result is new, so its data buffer holds these lines and nothing else.
    lines = ended.buffers()[2]
    if np.count_nonzero(np.frombuffer(lines, np.uint8) == _LINE_END) == len(records):
        return lines
    return b"".join(to_one_line(record) + b"\n" for record in records.to_pylist())


class JsonlShard:
    """A shard of JSON lines, read forwards: an earlier row than the last one read costs reading from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks = read_line_chunks(path)
        self._chunk: list[bytes] = []
        self._first_row = 0

    def row(self, index: int) -> ShardRecord:
        if index < self._first_row:
            self._chunks, self._chunk, self._first_row = read_line_chunks(self._path), [], 0
        while index >= self._first_row + len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                raise EOFError(f"row {index} of a shard that has {self._first_row + len(self._chunk)}")
            self._first_row += len(self._chunk)
            self._chunk = chunk
        return decode_record(self._chunk[index - self._first_row])

    def rows(self) -> Iterator[ShardRecord]:
        for chunk in read_line_chunks(self._path):
            yield from map(decode_record, chunk)

    def count_rows(self) -> int:
        return sum(map(len, read_line_chunks(self._path)))


def read_line_chunks(path: Path) -> Iterator[list[bytes]]:
    """Read whole lines, those of about one piece of the stream at a time."""
    return (chunk.split(b"\n") for chunk in read_whole_lines(path))


def read_whole_lines(path: Path) -> Iterator[bytes]:
    """Read pieces of the stream that end with a line, without its line break."""
    unfinished: list[bytes] = []
    for piece in _read_pieces(path):
        end = piece.rfind(b"\n")
        if end >= 0:
            yield b"".join([*unfinished, memoryview(piece)[:end]])
            unfinished = []
        unfinished.append(piece[end + 1 :])
    if last := b"".join(unfinished):
        yield last


def decode_record(content: bytes) -> ShardRecord:
    """Decode a JSON object; any other value is damage."""
    record: Any = decode_json(content)
    if not isinstance(record, dict):
        raise msgspec.ValidationError(f"a record must be an object, not {type(record).__name__}")
    return record


def _read_pieces(path: Path) -> Iterator[bytes]:
    with open_input(str(path)) as stream:
        codec = find_codec(str(path))
        if codec is not None:
            yield from decompress(stream, codec)
            return
        while piece := stream.read(1 << 20):
            yield piece
