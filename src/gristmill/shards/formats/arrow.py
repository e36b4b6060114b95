"""Arrow shards: IPC streams of canonical batches, mapped for reading."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.records import KINDS, WEIGHTS
from gristmill.shards.canonical import STREAM_END, read_unchecked_batches, stream_block, stream_header, stream_pieces
from gristmill.shards.formats.base import ROWS_AT_A_TIME
from gristmill.shards.token_rows import LENGTHS, ORIGINS, check_rows, decode_kinds, decode_weights, has_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from gristmill.shards.formats.base import ShardRecord


@dataclass(frozen=True, slots=True)
class ArrowEncoder:
    """An `Encoder` of Arrow streams."""

    schema: pa.Schema
    suffix: str = ".arrow"
    concatenates: bool = True
    holds_origins: bool = True

    def header(self) -> bytes:
        return stream_header(self.schema)

    def block(self, batch: pa.RecordBatch) -> bytes | pa.Buffer:
        return stream_block(batch, self.schema)

    def pieces(self, batch: pa.RecordBatch) -> list[bytes | pa.Buffer]:
        """Encode a batch as `block` does, in pieces that are not copied together."""
        return stream_pieces(batch, self.schema)

    def footer(self) -> bytes:
        return STREAM_END


class ArrowShard:
    """A mapped Arrow stream. Opening it reads the header of each batch; a batch is checked when it is first touched."""

    def __init__(self, path: Path, schema: pa.Schema | None) -> None:
        self._batches = list(read_unchecked_batches(path, schema))
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        self._checked: set[int] = set()

    def row(self, index: int) -> ShardRecord:
        record: ShardRecord = self._read_row(index).to_pylist()[0]
        return record

    def rows(self) -> Iterator[ShardRecord]:
        for number in range(len(self._batches)):
            batch = self._read_batch(number)
            for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
                yield from batch.slice(start, ROWS_AT_A_TIME).to_pylist()

    def count_rows(self) -> int:
        """Count the rows; this checks every batch."""
        return sum(self._read_batch(number).num_rows for number in range(len(self._batches)))

    def _read_row(self, index: int) -> pa.RecordBatch:
        number = bisect.bisect_right(self._ends, index)
        batch = self._read_batch(number)
        return batch.slice(index - self._ends[number] + batch.num_rows, 1)

    def _read_batch(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if number not in self._checked:
            self._check(batch)
            self._checked.add(number)
        return batch

    def _check(self, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)


class TokenShard(ArrowShard):
    """A mapped Arrow stream of token rows, read as NumPy arrays that are views of the file."""

    def row(self, index: int) -> ShardRecord:
        return _to_arrays(self._read_row(index))

    def rows(self) -> Iterator[ShardRecord]:
        for number in range(len(self._batches)):
            batch = self._read_batch(number)
            for row in range(batch.num_rows):
                yield _to_arrays(batch.slice(row, 1))

    def _check(self, batch: pa.RecordBatch) -> None:
        super()._check(batch)
        check_rows(batch)


def _to_arrays(row: pa.RecordBatch) -> ShardRecord:
    """Make an array of each list in a row; origins stay a list of dicts."""
    in_runs = has_kinds(row.schema)
    record: ShardRecord = {
        name: (decode_kinds(row.column(name)) if name == KINDS and in_runs else row.column(name))
        .flatten()
        .to_numpy(zero_copy_only=False)  # bits are unpacked, and runs of kinds; all else is a view
        for name in row.schema.names
        if name != ORIGINS
    }
    if in_runs and WEIGHTS in record:
        record[WEIGHTS] = decode_weights(record[WEIGHTS], int(record[LENGTHS].sum()))
    record[ORIGINS] = row.column(ORIGINS)[0].as_py()
    return record
