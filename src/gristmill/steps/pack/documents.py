"""Tokenized documents as Arrow batches, packed into training rows.

All documents of a unit are held at once (their ids: some 20 million for 64 MiB of text); rows are made a few MiB at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, ORIGIN, ORIGIN_TYPE
from gristmill.shards.token_rows import document_lengths, rows_schema
from gristmill.steps.pack.rows import fill_rows, plan_rows, unfinished_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.pack.rows import Packing

_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """The rows of some documents, and what is left over for a later packing."""

    pack: Pack
    pad_id: int
    packing: Packing
    """Of the rows that are written."""
    leftover: Packing
    """Of rows that are worth packing again with others."""
    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    origins: pa.StructArray

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Batches of a fixed number of rows."""
        row_length = self.pack.row_length
        step = max(1, _BLOCK_BYTES // (row_length * self.ids.itemsize))
        for first in range(0, self.packing.num_rows, step):
            yield self._batch(_rows_between(self.packing, first, min(first + step, self.packing.num_rows)))

    def leftover_documents(self) -> pa.RecordBatch:
        """Pieces of documents that found no good row, as documents."""
        taken = self.leftover
        first = self.offsets[taken.documents] + taken.starts
        ends = np.cumsum(taken.lengths, dtype=np.int64)
        ids = np.empty(int(ends[-1]) if len(ends) else 0, dtype=self.ids.dtype)
        for start, length, end in zip(first, taken.lengths, ends, strict=True):  # of a few rows
            ids[end - length : end] = self.ids[start : start + length]
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, pa.array(ids))
        return pa.RecordBatch.from_arrays([self.origins.take(pa.array(taken.documents)), lists], [ORIGIN, INPUT_IDS])

    def _batch(self, packing: Packing) -> pa.RecordBatch:
        row_length = self.pack.row_length
        flat = fill_rows(self.ids, self.offsets, packing, row_length, self.pad_id)
        ends = pa.array(np.concatenate([[0], packing.row_ends]).astype(np.int32))
        schema = rows_schema(pa.from_numpy_dtype(self.ids.dtype), row_length)
        columns = [
            pa.FixedSizeListArray.from_arrays(pa.array(flat), row_length),
            pa.ListArray.from_arrays(ends, pa.array(packing.lengths)),
            pa.ListArray.from_arrays(ends, self.origins.take(pa.array(packing.documents))),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def pack_documents(
    pack: Pack, pad_id: int, batches: Sequence[pa.RecordBatch], *, keeps_unfinished: bool
) -> PackedDocuments:
    """Lay the documents of all batches into rows; `keeps_unfinished` also those that others might still fill."""
    ids = [batch.column(INPUT_IDS) for batch in batches]
    lengths = np.concatenate([np.empty(0, np.int64), *map(document_lengths, ids)])
    packing = plan_rows(pack, lengths)
    unfinished = np.empty(0, np.int64) if keeps_unfinished else unfinished_rows(pack, packing)
    return PackedDocuments(
        pack=pack,
        pad_id=pad_id,
        packing=_rows_at(packing, np.delete(np.arange(packing.num_rows), unfinished)) if len(unfinished) else packing,
        leftover=_rows_at(packing, unfinished),
        ids=_joined([array.flatten().to_numpy() for array in ids]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        origins=pa.chunked_array([batch.column(ORIGIN) for batch in batches], ORIGIN_TYPE).combine_chunks(),
    )


def _joined(arrays: Sequence[NDArray[np.unsignedinteger]]) -> NDArray[np.unsignedinteger]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _rows_between(packing: Packing, first: int, stop: int) -> Packing:
    start = int(packing.row_ends[first - 1]) if first else 0
    end = int(packing.row_ends[stop - 1])
    return replace(
        packing,
        documents=packing.documents[start:end],
        starts=packing.starts[start:end],
        lengths=packing.lengths[start:end],
        row_ends=packing.row_ends[first:stop] - start,
    )


def _rows_at(packing: Packing, rows: NDArray[np.int64]) -> Packing:
    """Only these rows."""
    starts = np.concatenate([[0], packing.row_ends])
    sizes = packing.row_ends[rows] - starts[rows]
    row_ends = np.cumsum(sizes)
    pieces = np.arange(int(row_ends[-1]) if len(row_ends) else 0) + np.repeat(starts[rows] - (row_ends - sizes), sizes)
    return replace(
        packing,
        documents=packing.documents[pieces],
        starts=packing.starts[pieces],
        lengths=packing.lengths[pieces],
        row_ends=row_ends,
    )
