"""Those who share out or join what a `TorchDataset` gives, though these are whole batches of one rank already.

accelerate does so to any IterableDataset of a DataLoader that is passed to `prepare`: process 0 reads for all, or each
keeps every second batch. A `TorchDataset` has the batches of one rank, so the others' rows would never be read.
Lightning and Ray Train leave such datasets alone, and torch itself refuses a `DistributedSampler` for them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

_SHARDING = {"accelerate.data_loader": ("DataLoaderDispatcher", "IterableDatasetShard")}
"""Module -> its classes that share out what they read. They are on the stack when they ask for an iterator or set an
epoch; by then they have wrapped the dataset, which has no other way to know of it."""


def refuse_second_sharding(world_size: int) -> None:
    """Raise `UsageError` if somebody on the stack shares out what a dataset of one of several ranks gives."""
    if world_size == 1:
        return
    frame = sys._getframe(1)
    while frame is not None:
        classes = _SHARDING.get(frame.f_globals.get("__name__", ""), ())
        if classes and type(frame.f_locals.get("self")).__name__ in classes:
            raise UsageError(
                f"accelerate shares out this DataLoader among the ranks, and its TorchDataset is already the part of "
                f"one rank of {world_size}: rows would be left out",
                help="do not pass the DataLoader to prepare, or use TorchLoader, which needs none; for accelerate and "
                "transformers.Trainer to share out rows, give them TorchRows",
            )
        frame = frame.f_back  # type: ignore[assignment]


def accelerate_global_batch() -> int | None:
    """Rows of a step over all ranks, if an accelerate sampler on the stack fills up or drops an incomplete last one."""
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
    """Raise `UsageError` if a DataLoader on the stack would make batches of what are whole batches already."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fetch" and getattr(frame.f_locals.get("self"), "auto_collation", False):
            raise UsageError(
                "a TorchDataset gives whole batches, and this DataLoader would join several of them to one",
                help="write DataLoader(dataset, batch_size=None, …): the size is TorchDataset's batch_size; for "
                "transformers.Trainer give TorchRows",
            )
        frame = frame.f_back  # type: ignore[assignment]
