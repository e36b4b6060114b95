"""The content of records, by which copies are found and splits are chosen: the text, or the bytes of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from gristmill.core.media import list_byte_columns
from gristmill.core.records import TEXT
from gristmill.steps.records.columns import require_column

if TYPE_CHECKING:
    from collections.abc import Sequence


def require_content(step: str, schema: pa.Schema) -> None:
    """Raise `UsageError` if records have neither a text nor bytes."""
    if not list_byte_columns(schema):
        require_column(step, TEXT, schema)


def read_content(batch: pa.RecordBatch, columns: Sequence[str] = ()) -> pa.Array:
    """Return the content of each record: its text, or the bytes of a sample; of several columns, their digests."""
    if TEXT in batch.schema.names and not columns:
        return batch.column(TEXT)
    names = columns or list_byte_columns(batch.schema)
    if len(names) == 1:
        return batch.column(names[0]).cast(pa.large_binary())
    digests = [[xxhash.xxh3_128_digest(value or b"") for value in batch.column(name).to_pylist()] for name in names]
    return pa.array([b"".join(row) for row in zip(*digests, strict=True)], pa.large_binary())
