"""Real workers for the proof of exact resume: a DataLoader with processes for each rank, one after the other."""

from __future__ import annotations

import itertools
import pickle
import sys
import warnings
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from gristmill.stream.torch.dataset import TorchDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.stream.collate import Batch
    from gristmill.stream.prove import Leg
    from gristmill.stream.stream import Stream


def loader_workers(
    stream: Stream, state: Mapping[str, Any], leg: Leg, steps: int
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """See `stream.prove.Run`. Held in memory: the batches of all ranks of one leg."""
    ranks = []
    for rank in range(leg.world_size):
        dataset = TorchDataset(pickle.loads(pickle.dumps(stream)), leg.batch_size, rank=rank, world_size=leg.world_size)
        dataset.load_state_dict(state)
        with warnings.catch_warnings():  # more workers than cores are meant here, and threads that sleep are not forked
            warnings.simplefilter("ignore")
            # A worker that is started anew imports torch anew: seconds each.
            method = "fork" if leg.num_workers and sys.platform == "linux" else None
            loader = DataLoader(dataset, batch_size=None, num_workers=leg.num_workers, multiprocessing_context=method)
            batches = list(itertools.islice(loader, steps))
        ranks.append([(batch, dataset.state_after(batch)) for batch in batches])
    for step in zip(*ranks, strict=True):
        yield from step
