"""Real workers for the proof of exact resume: for one rank after the other, a DataLoader with worker processes."""

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

    from gristmill.stream.batches.collate import Batch
    from gristmill.stream.examining.prove import ElasticRun
    from gristmill.stream.stream import Stream


def run_loader_workers(
    stream: Stream, state: Mapping[str, Any], run: ElasticRun, steps: int
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Read as a `stream.prove.RankReader` with worker processes. The batches of all ranks of one run are in memory."""
    ranks = []
    for rank in range(run.world_size):
        dataset = TorchDataset(pickle.loads(pickle.dumps(stream)), run.batch_size, rank=rank, world_size=run.world_size)
        dataset.load_state_dict(state)
        with warnings.catch_warnings():  # having more workers than cores is intended, and no thread is running
            warnings.simplefilter("ignore")
            # A worker that is not forked imports torch again, which takes seconds.
            method = "fork" if run.num_workers and sys.platform == "linux" else None
            loader = DataLoader(dataset, batch_size=None, num_workers=run.num_workers, multiprocessing_context=method)
            batches = list(itertools.islice(loader, steps))
        ranks.append([(batch, dataset.state_after(batch)) for batch in batches])
    for step in zip(*ranks, strict=True):
        yield from step
