"""Arrays as tensors of the same memory, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.batches.collate import Batch


def as_tensors(batch: Batch) -> Batch:
    """Replace the arrays of a batch by tensors, and return the batch."""
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            batch[name] = torch.from_numpy(value)
    return batch


def make_pinned_array(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Make an array in pinned memory, from which a GPU copies while the CPU continues."""
    return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), pin_memory=True).numpy()
