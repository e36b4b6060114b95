"""The column `source` of documents whose sources are written as one lane: the source that each document is from.

Records that were read from JSON get it as a key, inserted before the last brace: all other bytes stay. If there is a
column or key of this name already, it stays as it is; then only the origin tells the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, RECORD, StepResult
from gristmill.core.step import LocalStep

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = "source"

_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class NameSource(LocalStep, tag="mix", frozen=True, kw_only=True):
    """A step that changes columns as a barrier that joins sources does, for the sample records of a plan."""

    source: str

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(with_source(batch, self.source))


def has_source_column(schema: pa.Schema) -> bool:
    """Whether documents of this schema get the column; tokens have a fixed set of columns."""
    return INPUT_IDS not in schema.names and SOURCE not in schema.names


def with_source_field(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `with_source`."""
    return schema.append(pa.field(SOURCE, pa.string())) if has_source_column(schema) else schema


def with_source(batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
    """Return the records of one source with its name in a column.

    >>> from gristmill.core.sample_batches import documents
    >>> with_source(documents(["one", "two"]), "web").column("source").to_pylist()
    ['web', 'web']
    """
    if not has_source_column(batch.schema):
        return batch
    index = batch.schema.get_field_index(RECORD)
    if index >= 0:
        records = pa.array(_add_source_keys(batch.column(index).to_pylist(), source), batch.schema.field(index).type)
        batch = batch.set_column(index, batch.schema.field(index), records)
    names = pa.repeat(pa.scalar(source, pa.string()), batch.num_rows)
    return batch.append_column(pa.field(SOURCE, pa.string()), names)


def _add_source_keys(records: list[bytes | None], source: str) -> Iterator[bytes | None]:
    key = b'"source":' + msgspec.json.encode(source) + b"}"
    for record in records:
        if record is None or _has_source(record):
            yield record
            continue
        body = record.rstrip().removesuffix(b"}").rstrip()
        yield body + (key if body == b"{" else b"," + key)


def _has_source(record: bytes) -> bool:
    # Only a record that holds the word, or an escape that may hide it, is parsed.
    return (b'"source"' in record or b"\\u" in record) and SOURCE in _decode_keys(record)
