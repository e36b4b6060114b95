"""The data-parallel rank of this process, and what its batches need: tensors, and no second sharding.

accelerate shards any IterableDataset of a DataLoader that is passed to `prepare`: process 0 reads for all, or each
process keeps every second batch. A `TorchDataset` has the whole batches of one rank, so the rows of other ranks would
never be read: this is refused. Lightning and Ray Train do not touch such datasets, and torch refuses a
`DistributedSampler` for them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed

from gristmill.core.errors import UsageError
from gristmill.stream.lanes.arguments import check_ranks

if TYPE_CHECKING:
    from types import FrameType

    from numpy.typing import NDArray

    from gristmill.stream.collate import Batch


_SHARDING = {"accelerate.data_loader": ("DataLoaderDispatcher", "IterableDatasetShard")}
"""The classes of a module that shard what they read. They are on the stack when they create an iterator or set an
epoch, and a wrapped dataset has no other way to detect them."""


class Ranks:
    """The rank and the number of ranks. If they are not set, they are looked up at each use.

    A trainer may start its process group after the dataset was made, as Lightning does.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        if (rank is None) != (world_size is None):
            raise UsageError("set both rank and world_size, or neither")
        self._fixed = None
        if rank is not None and world_size is not None:
            _, rank, world_size = check_ranks(1, rank, world_size)
            self._fixed = rank, world_size
        else:
            find_ranks()  # an invalid environment is refused now

    @property
    def rank(self) -> int:
        return (self._fixed or find_ranks())[0]

    @property
    def world_size(self) -> int:
        return (self._fixed or find_ranks())[1]

    def __reduce__(self) -> tuple[type[Ranks], tuple[int, int]]:
        # A worker, where this is unpickled, has no process group.
        return Ranks, (self.rank, self.world_size)


def find_ranks() -> tuple[int, int]:
    """Find the rank and the world size: from `torch.distributed`, else from the environment (torchrun), else 0 of 1.

    With tensor or pipeline parallelism several processes must read the same rows: set their data-parallel rank.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in values:
        return 0, 1
    try:
        rank, world_size = int(values[0] or ""), int(values[1] or "")
    except ValueError:
        raise UsageError(f"RANK and WORLD_SIZE must be numbers, not {values[0]!r} and {values[1]!r}") from None
    check_ranks(1, rank, world_size)
    return rank, world_size


def refuse_second_sharding(world_size: int) -> None:
    """Raise `UsageError` if a class on the stack shards the dataset of one of several ranks again."""
    if world_size == 1:
        return
    frame = sys._getframe(1)
    while frame is not None:
        classes = _SHARDING.get(frame.f_globals.get("__name__", ""), ())
        if classes and type(frame.f_locals.get("self")).__name__ in classes:
            raise UsageError(
                f"accelerate shards this DataLoader among the ranks, but its TorchDataset already holds the batches of "
                f"one rank of {world_size}: rows would be left out",
                help="do not pass the DataLoader to prepare, or use TorchLoader, which needs none; if accelerate or "
                "transformers.Trainer should shard rows, use TorchRows",
            )
        frame = frame.f_back  # type: ignore[assignment]


def accelerate_global_batch() -> int | None:
    """Return the rows of a step over all ranks, if a sampler of accelerate is on the stack that evens out batches."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        sampler: Any = frame.f_locals.get("self")
        is_accelerate = frame.f_globals.get("__name__") == "accelerate.data_loader"
        if is_accelerate and type(sampler).__name__ == "BatchSamplerShard" and sampler.batch_size:
            if not (sampler.even_batches or sampler.drop_last):
                return None
            return int(sampler.batch_size * (1 if sampler.split_batches else sampler.num_processes))
        frame = frame.f_back
    return None


def refuse_batching() -> None:
    """Raise `UsageError` if a DataLoader on the stack would join whole batches into larger ones."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fetch" and getattr(frame.f_locals.get("self"), "auto_collation", False):
            raise UsageError(
                "a TorchDataset yields whole batches, and this DataLoader would join several of them",
                help="write DataLoader(dataset, batch_size=None, …): the size is TorchDataset's batch_size; for "
                "transformers.Trainer use TorchRows",
            )
        frame = frame.f_back  # type: ignore[assignment]


def as_tensors(batch: Batch) -> Batch:
    """Replace the arrays of a batch by tensors, and return the batch."""
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            batch[name] = torch.from_numpy(value)
    return batch


def make_pinned_array(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Make an array in pinned memory, from which a GPU copies while the CPU continues."""
    return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), pin_memory=True).numpy()
