"""Arrow IPC streams of canonical batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.shards.arrow_stream import STREAM_END, stream_block, stream_header

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ArrowEncoder:
    """See `Encoder`."""

    schema: pa.Schema
    suffix: str = ".arrow"
    concatenates: bool = True
    holds_origins: bool = True

    def header(self) -> bytes:
        return stream_header(self.schema)

    def block(self, batch: pa.RecordBatch) -> bytes:
        return stream_block(batch, self.schema)

    def footer(self) -> bytes:
        return STREAM_END
