"""Interleaving: rows of several sequences become one sequence, a block at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class RowCursor:
    """A position in a sequence of batches, from which rows are taken in order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        """Take the next rows, as views of the batches that hold them."""
        while num_rows:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches)
            piece = self._rest.slice(0, num_rows)
            self._rest = self._rest.slice(piece.num_rows)
            num_rows -= piece.num_rows
            yield piece


def interleave_rows(sources: NDArray[np.int32], cursors: Sequence[RowCursor]) -> pa.RecordBatch:
    """Build a batch whose row i is the next row of cursor `sources[i]`.

    With sources [1, 0, 1] the rows are the first of cursor 1, the first of cursor 0, and the second of cursor 1.
    """
    counts = np.bincount(sources, minlength=len(cursors))
    pieces = [piece for cursor, count in zip(cursors, counts.tolist(), strict=True) for piece in cursor.take(count)]
    # The pieces are joined source by source, so a stable sort of `sources` lists the places in the same order: the k-th
    # joined row belongs to the k-th place of the sort.
    rows = np.empty(len(sources), dtype=np.int64)
    rows[np.argsort(sources, kind="stable")] = np.arange(len(sources))
    return pa.concat_batches(pieces).take(pa.array(rows))
