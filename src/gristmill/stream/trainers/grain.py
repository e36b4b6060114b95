"""`GrainSource`: the rows of a stream as a data source of Grain, for JAX trainers such as MaxText.

Grain (0.2) shards, batches and checkpoints by itself. Its `RandomAccessDataSource` is a protocol, a length and rows by
number, so this module does not import it. The rows are in the order of the stream: do not shuffle them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.checks import MAX_COUNT, check_whole_number
from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.stream.resumable import check_stream

if TYPE_CHECKING:
    from gristmill.stream.stream import Stream

__all__ = ["GrainSource"]


class GrainSource:
    """The rows of a stream that has an end, as dicts of arrays: `grain.MapDataset.source(GrainSource(stream))`.

    It can be pickled, for the worker processes of Grain. Slices for ranks are Grain's: `dataset[rank::world_size]`.
    """

    def __init__(self, stream: Stream) -> None:
        check_stream(stream, self, by_rows=True)
        if "cu_seqlens" in stream.collate.fields or stream.collate.flatten:
            raise UsageError("cu_seqlens and flatten describe a batch, not a row", help="leave them out")
        len(stream)  # raises an error for an endless stream
        self._stream = stream

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, num_rows = check_whole_number("row", index, least=-MAX_COUNT), len(self)
        row += num_rows if row < 0 else 0
        if not 0 <= row < num_rows:
            raise OutOfRangeError(f"row {index} of {num_rows}")
        rows = np.array([row])
        if self._stream.holds_samples:
            return self._stream.samples(rows)[0]
        batch = self._stream.take(rows, first_row=row, next_row=row + 1)
        length = int(batch.tokens[0]) if self._stream.row_length is None else None  # rows that differ have no padding
        return {name: array[0][:length] if array.ndim > 1 else array[0] for name, array in batch.items()}

    def __repr__(self) -> str:
        """Name the data and the order. Grain compares this when a checkpoint is loaded."""
        state = self._stream.state_dict(row=0)
        return f"GrainSource({state['dataset_hash']}, seed={state['seed']}, {state['mixture_hash']}, rows={len(self)})"
