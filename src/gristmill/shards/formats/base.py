"""What every shard format provides: an encoder, and a reader of what it wrote.

An encoder keeps no state, so the same batch gives the same block wherever it is encoded. A shard is header + blocks +
footer: the blocks of its batches in order, however tasks grouped them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from gristmill.core.records import ORIGIN
from gristmill.shards.token_rows import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Iterator

ShardRecord = dict[str, Any]
ROWS_AT_A_TIME = 256
"""Readers turn this many rows into Python objects at once."""
READ_ERRORS = (OSError, EOFError, pa.ArrowException, msgspec.DecodeError, ValueError, LookupError, OverflowError)
"""What reading a damaged shard may raise, besides `CorruptStreamError`."""


class ByteSink(Protocol):
    """Something that bytes can be written to."""

    def write(self, data: bytes, /) -> object: ...


class Encoder(Protocol):
    """The encoder of one format: deterministic, and without I/O."""

    @property
    def suffix(self) -> str:
        """The end of a shard's file name: `.jsonl.zst`."""

    @property
    def concatenates(self) -> bool:
        """Whether header + blocks + footer is the shard. If not, it is an Arrow stream to pass to `write_shard`."""

    @property
    def holds_origins(self) -> bool:
        """Whether the shard keeps its records' origins; if not, they go to a side file (`origins_block`)."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that a reader of the dataset gets, for the manifest."""

    def header(self) -> bytes: ...

    def block(self, batch: pa.RecordBatch) -> bytes | pa.Buffer:
        """Encode one batch; a batch without rows gives no bytes."""

    def footer(self) -> bytes: ...


@runtime_checkable
class KeyedEncoder(Encoder, Protocol):
    """An encoder whose records have keys, which must differ from that of the record before."""

    def block_after(self, batch: pa.RecordBatch, previous: str | None) -> tuple[bytes, str | None]:
        """Encode records that follow one with the key `previous`; return the block and the key of its last record."""


@runtime_checkable
class SampleEncoder(KeyedEncoder, Protocol):
    """An encoder of samples: their side file is an index of the shard, if they have a layout."""

    @property
    def layout(self) -> object | None: ...

    def sized_block_after(
        self, batch: pa.RecordBatch, previous: str | None
    ) -> tuple[list[bytes], str | None, list[int]]:
        """Like `block_after`, in pieces and with the bytes of each sample."""


def has_sample_sizes(encoder: Encoder) -> bool:
    """Whether the side files of shards have the bytes of each sample."""
    return isinstance(encoder, SampleEncoder) and encoder.layout is not None


class ShardReader(Protocol):
    """The records of one shard. A damaged shard raises any error of its library: see `READ_ERRORS`."""

    def row(self, index: int) -> ShardRecord: ...

    def rows(self) -> Iterator[ShardRecord]: ...

    def count_rows(self) -> int:
        """Count the rows that the file really has."""


def remove_origins(record: ShardRecord) -> ShardRecord:
    """Remove the columns of origins from a record, in place."""
    record.pop(ORIGIN, None)
    record.pop(ORIGINS, None)
    return record
