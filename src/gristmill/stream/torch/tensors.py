"""Arrays as tensors: the same memory, no copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.collate import Batch


def as_tensors(batch: Batch) -> Batch:
    """The batch itself, its arrays replaced."""
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            batch[name] = torch.from_numpy(value)
    return batch


def pinned_array(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An array in memory from which a GPU copies while the processor goes on."""
    return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()
