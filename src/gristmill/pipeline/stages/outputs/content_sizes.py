"""Streams with sizes in place of texts and records, where the next stage reads these from their files again.

A document takes about 40 bytes, however long it is. Its origin says where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import RECORD, RECORD_BYTES, TEXT, TEXT_BYTES
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.formats.arrow import ArrowEncoder
from gristmill.text.buffers import get_text_buffers

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZES = {TEXT: TEXT_BYTES, RECORD: RECORD_BYTES}


@dataclass(frozen=True, slots=True)
class SizesEncoder(ArrowEncoder):
    """An encoder of such streams. The records that it takes still have their texts."""

    def block(self, batch: pa.RecordBatch) -> bytes | pa.Buffer:
        return ArrowEncoder.block(self, _measure_content(batch))

    def pieces(self, batch: pa.RecordBatch) -> list[bytes | pa.Buffer]:
        return ArrowEncoder.pieces(self, _measure_content(batch))


def open_sizes_encoder(schema: pa.Schema) -> SizesEncoder:
    """Open the encoder of a stream for records with these columns."""
    return SizesEncoder(canonicalize_schema(_put_sizes(schema, _SIZES)))


def leave_record(schema: pa.Schema) -> pa.Schema:
    """Return the columns of records that are read for such a stream: the text is needed, of the record its size."""
    return _put_sizes(schema, {RECORD: RECORD_BYTES})


def _put_sizes(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    fields = [pa.field(names[field.name], pa.int64()) if field.name in names else field for field in schema]
    return pa.schema(fields, schema.metadata)


def _measure_content(batch: pa.RecordBatch) -> pa.RecordBatch:
    for index, field in enumerate(batch.schema):
        if field.name in _SIZES:
            _, offsets = get_text_buffers(batch.column(index))
            batch = batch.set_column(index, pa.field(_SIZES[field.name], pa.int64()), pa.array(np.diff(offsets)))
    return batch
