"""The loaders that `gristmill stream bench` compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import DataLoader

from gristmill.stream.torch.dataset import TorchDataset
from gristmill.stream.torch.loader import TorchLoader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.stream.batches.collate import Batch
    from gristmill.stream.stream import Stream


def make_loader(stream: Stream, batch_size: int, num_workers: int) -> tuple[str, Iterable[Batch]]:
    """Make a loader with worker processes, or (0) one with a thread, and its name."""
    if not num_workers:
        return "TorchLoader, 1 thread", TorchLoader(stream, batch_size, rank=0, world_size=1, num_threads=1)
    dataset = TorchDataset(stream, batch_size, rank=0, world_size=1)
    loader: Iterable[Batch] = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    return f"DataLoader, {num_workers} workers", loader
