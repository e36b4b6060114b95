"""Rows of several sequences dealt out into one, a block at a time: what each gives next, put in its places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class RowCursor:
    """The rows of a sequence of batches, taken from its beginning."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        """The next rows, as views of the batches that hold them."""
        while num_rows:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches)
            piece = self._rest.slice(0, num_rows)
            self._rest = self._rest.slice(piece.num_rows)
            num_rows -= piece.num_rows
            yield piece


def interleave_rows(sources: NDArray[np.int32], cursors: Sequence[RowCursor]) -> pa.RecordBatch:
    """The next row of cursor `sources[i]` at each place i."""
    counts = np.bincount(sources, minlength=len(cursors))
    pieces = [piece for cursor, count in zip(cursors, counts.tolist(), strict=True) for piece in cursor.take(count)]
    # Joined, the rows stand source by source: the first of those goes to the first place of its source.
    rows = np.empty(len(sources), dtype=np.int64)
    rows[np.argsort(sources, kind="stable")] = np.arange(len(sources))
    return pa.concat_batches(pieces).take(pa.array(rows))
