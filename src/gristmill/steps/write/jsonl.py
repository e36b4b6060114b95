"""JSON lines, each block one compressed frame of its own; any tool reads the frames as one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, RECORD
from gristmill.steps.unite.json_text import is_json, to_json_values
from gristmill.storage.compression import compress_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.storage.compression import Codec

_LINE_END = ord("\n")


@dataclass(frozen=True, slots=True)
class JsonlEncoder:
    """See `Encoder`."""

    schema: pa.Schema
    has_record: bool
    """Lines are the records as they were read; else they are made of the columns."""
    suffix: str
    codec: Codec | None
    concatenates: bool = True
    holds_origins: bool = False

    def header(self) -> bytes:
        return b""

    def block(self, batch: pa.RecordBatch) -> bytes:
        if not batch.num_rows:
            return b""
        lines = _record_lines(batch.column(RECORD)) if self.has_record else self._column_lines(batch)
        return bytes(lines) if self.codec is None else compress_frame(lines, self.codec)

    def footer(self) -> bytes:
        """An empty frame: tools refuse a compressed file of no bytes, which a shard without records would be."""
        return b"" if self.codec is None else compress_frame(b"", self.codec)

    def _column_lines(self, batch: pa.RecordBatch) -> bytes:
        names = [name for name in self.schema.names if name != ORIGIN]
        return msgspec.json.Encoder().encode_lines(json_rows(batch, names))


def json_rows(batch: pa.RecordBatch, names: Iterable[str]) -> Iterator[dict[str, object]]:
    """The rows of some columns as objects that JSON can hold, keys in the order of the names."""
    names = list(names)
    if not names:
        return iter([{} for _ in range(batch.num_rows)])
    columns = [to_json_values(batch.column(name), holds_json=is_json(batch.schema.field(name))) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def to_one_line(record: bytes) -> bytes:
    """A JSON text without line breaks; they can only stand between tokens."""
    return msgspec.json.format(record, indent=-1) if b"\n" in record else record


def _record_lines(records: pa.LargeBinaryArray) -> bytes | memoryview:
    if records.null_count:
        raise UsageError(
            "a record to be written as it was read is missing",
            help=f"a function that makes new records must fill their column {RECORD!r}, or drop it",
        )
    ended = pc.binary_join_element_wise(records, pa.scalar(b"", records.type), pa.scalar(b"\n", records.type))
    # The result is new, so its data buffer holds these lines and nothing else.
    lines = memoryview(ended.buffers()[2])
    if np.count_nonzero(np.frombuffer(lines, np.uint8) == _LINE_END) == len(records):
        return lines
    return b"".join(to_one_line(record) + b"\n" for record in records.to_pylist())
