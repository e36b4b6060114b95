"""`TorchRows`: single rows by number, for trainers that sample, shard and collate by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.core.numbers import MAX_COUNT, whole_number
from gristmill.order.arrays import whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.stream.stream import Stream

Row = dict[str, torch.Tensor]


class TorchRows(Dataset[Row]):
    """The rows of a stream that has an end, in its order: row i is `self[i]`, whatever the rank.

    For `transformers.Trainer`, accelerate, Lightning and samplers: they give each rank its rows. Rows of different
    lengths come without padding, as `DataCollatorWithPadding` and the like want them.
    """

    def __init__(self, stream: Stream) -> None:
        if "cu_seqlens" in stream.collate.fields:
            raise UsageError("cu_seqlens is of a batch, not of a row", help="use TorchDataset or TorchLoader")
        len(stream)
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([whole_number("row", index, least=-MAX_COUNT)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Several at once, as a DataLoader asks for them: one kernel for all."""
        rows = np.atleast_1d(whole_numbers("rows", indices))
        rows = np.where(rows < 0, rows + len(self), rows)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise OutOfRangeError(f"rows {list(indices)} of {len(self)}")
        batch = self.stream.take(rows, first_row=0, next_row=0)
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
