"""`TorchRows`: single rows by number, for trainers that do their own sampling, sharding and collating."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from gristmill.core.checks import MAX_COUNT, check_whole_number
from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.order.permutation import check_whole_numbers
from gristmill.stream.resumable import check_stream
from gristmill.stream.torch.ranks import accelerate_global_batch, find_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.stream.collate import Batch
    from gristmill.stream.rows.sample_rows import SampleRows
    from gristmill.stream.stream import Stream

Row = dict[str, Any]


class TorchRows(Dataset[Row]):
    """The rows of a stream that has an end, in its order: row i is `self[i]`, on every rank.

    For `transformers.Trainer`, accelerate, Lightning and samplers, which assign rows to ranks. Rows that differ in
    length have no padding, as `DataCollatorWithPadding` and similar collators expect.
    """

    def __init__(self, stream: Stream) -> None:
        check_stream(stream, self, by_rows=True)
        if "cu_seqlens" in stream.collate.fields or stream.collate.flatten:
            raise UsageError(
                "cu_seqlens and flatten describe a batch, not a row", help="use TorchDataset or TorchLoader"
            )
        len(stream)  # raises an error for an endless stream
        self.stream = stream
        self.stream.accounting.share()
        self._warned_size = 1

    def __len__(self) -> int:
        num_rows, (_, world_size) = len(self.stream), find_ranks()
        # A sampler reads the length at the start of each epoch. What shards it is then on the stack.
        size = accelerate_global_batch() or world_size
        if num_rows % size and size > self._warned_size:
            self._warned_size = size
            whole = f"batches of {size} rows over all ranks" if size != world_size else f"{world_size} ranks"
            warnings.warn(
                f"{num_rows} rows do not fill {whole}: samplers repeat or leave out some rows; "
                f"Stream(…, rows={num_rows - num_rows % size}) avoids that",
                stacklevel=2,
            )
        return num_rows

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([check_whole_number("row", index, least=-MAX_COUNT)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Read several rows with one kernel call, as a DataLoader requests them."""
        rows = np.atleast_1d(check_whole_numbers("rows", indices))
        num_rows = len(self.stream)
        rows = np.where(rows < 0, rows + num_rows, rows)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
            raise OutOfRangeError(f"rows {list(indices)} of {num_rows}")
        if self.stream.holds_samples:
            samples, batch = cast("SampleRows", self.stream.reader).take_described(rows)
            self._count(batch)
            return [
                {
                    name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
                    for name, value in sample.items()
                }
                for sample in samples
            ]
        batch = self.stream.take(rows, first_row=0, next_row=0)
        self._count(batch)
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        if self.stream.row_length is None:
            lengths = batch.tokens.tolist()
            return [
                {
                    name: tensor[number][:length] if tensor.dim() > 1 else tensor[number]
                    for name, tensor in tensors.items()
                }
                for number, length in enumerate(lengths)
            ]
        return [{name: tensor[number] for name, tensor in tensors.items()} for number in range(len(rows))]

    def _count(self, batch: Batch) -> None:
        """Count rows that were read in the order of a sampler."""
        worker = get_worker_info()
        if worker is None:
            self.stream.accounting.add_rows(batch)
        else:
            self.stream.count_in_worker(batch, worker.id, None)
