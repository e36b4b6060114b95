"""Checks against libraries that shard or join the batches of a `TorchDataset`, which are whole batches of one rank.

accelerate shards any IterableDataset of a DataLoader that is passed to `prepare`: process 0 reads for all, or each
process keeps every second batch. A `TorchDataset` has the batches of one rank only, so the rows of the others would
never be read. Lightning and Ray Train leave such datasets alone, and torch refuses a `DistributedSampler` for them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_convert

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

_SHARDING = {"accelerate.data_loader": ("DataLoaderDispatcher", "IterableDatasetShard")}
"""The classes of a module that shard what they read. They are on the stack when they create an iterator or set an
epoch, and a wrapped dataset has no other way to detect them."""
_WORKER_LOOPS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker")


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


def is_sent_as_it_is(batches: Any) -> bool:
    """Whether a worker of a DataLoader puts what this iterator yields into its queue, and nobody looks at it before.

    To be called by the method that makes an item.
    """
    fetch: FrameType | None = sys._getframe(2)
    if fetch is None or fetch.f_code.co_name != "fetch" or fetch.f_back is None:
        return False
    fetcher: Any = fetch.f_locals.get("self")
    return (
        getattr(fetcher, "dataset_iter", None) is batches
        and getattr(fetcher, "collate_fn", None) is default_convert
        and fetch.f_back.f_code.co_name == "_worker_loop"
        and fetch.f_back.f_globals.get("__name__") in _WORKER_LOOPS
    )
