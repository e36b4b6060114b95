"""`TorchLoader`: batches as tensors, made in advance by threads of this process.

Making a batch is one kernel call that releases the GIL, so threads run in parallel to the training step and nothing is
sent between processes. The threads end with the iteration. `make_loader` and `run_loader_workers` are for the
measurements and the proof of `stream.examine`.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from gristmill.core.checks import check_bool, check_whole_number
from gristmill.stream.resumable import check_stream
from gristmill.stream.torch.dataset import (
    TorchDataset,
    check_epoch,
    count_epoch_steps,
    count_pass_steps,
    warn_of_endless,
)
from gristmill.stream.torch.ranks import Ranks, as_tensors, make_pinned_array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from gristmill.stream.accounting import Accounting
    from gristmill.stream.collate import Batch
    from gristmill.stream.examine import ElasticRun
    from gristmill.stream.stream import Stream


_MAX_AHEAD = 1024
"""The most threads, and the most batches made in advance."""


class TorchLoader:
    """The batches of one rank, from the position of the stream on. Each batch moves the position.

    Args:
        stream: What to read.
        batch_size: Rows for each rank; None: the stream has `batch_tokens`, which decide.
        rank: The data-parallel rank. Default: from `torch.distributed` or the environment.
        world_size: The number of data-parallel ranks.
        num_threads: The number of threads that make batches in advance; 0: each batch is made when it is needed.
        prefetch: The number of batches made in advance.
        pin_memory: Whether batches are in pinned memory; None: if there is a GPU.
        restart: Whether each loop begins at row 0 and reads one pass, as for validation every few steps.
    """

    def __init__(
        self,
        stream: Stream,
        batch_size: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int = 1,
        prefetch: int = 4,
        pin_memory: bool | None = None,
        restart: bool = False,
    ) -> None:
        check_stream(stream, self)
        self.stream = stream
        self.batch_size, _, _ = stream.check_ranks(batch_size)
        self._ranks = Ranks(rank, world_size)
        self._num_threads = check_whole_number("num_threads", num_threads, most=_MAX_AHEAD)
        self._prefetch = check_whole_number("prefetch", prefetch, least=1, most=_MAX_AHEAD)
        pins = torch.cuda.is_available() if pin_memory is None else check_bool("pin_memory", pin_memory)
        self._restarts = check_bool("restart", restart)
        self._has_begun = False
        self._new: Any = make_pinned_array if pins else np.empty

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        return self._ranks.world_size

    @property
    def accounting(self) -> Accounting:
        """What was read so far, compared with the plan."""
        return self.stream.accounting

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one pass: the rest of the epoch in which the stream is, or with `restart` the first one."""
        rank, world_size = self.rank, self.world_size  # found once: reading the environment takes as long as ten rows
        global_size = self.batch_size * world_size
        check_epoch(self.stream, global_size)
        if self._restarts:
            self.stream.restart()
        row = self.stream.begin_pass(global_size)
        if self._has_begun and not self._restarts:
            warn_of_endless(self.stream)
        self._has_begun = True
        self.stream.refuse_ended(row, global_size)
        return self._pass(rank, world_size)

    def _pass(self, rank: int, world_size: int) -> Iterator[Batch]:
        def make(row: int) -> Batch:
            return as_tensors(self.stream.batch_at(row, self.batch_size, rank, world_size, new=self._new))

        first_rows = self._first_rows(self.batch_size * world_size)
        batches = self._make_ahead(make, first_rows) if self._num_threads else map(make, first_rows)
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            yield self.stream.advance(batch, time.perf_counter() - start)

    def __len__(self) -> int:
        """The number of steps in a whole epoch."""
        return count_epoch_steps(self.stream, self._global_size)

    @property
    def steps_left(self) -> int:
        """The number of steps to the end of the epoch; at its end, that of the next one; 0 at the end of the stream."""
        row = 0 if self._restarts else self.stream.position.next_pass(self.stream.passes)
        return count_pass_steps(self.stream, row, self._global_size)

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch, unless the stream is inside it already."""
        self.stream.set_epoch(epoch)

    @property
    def _global_size(self) -> int:
        return self.batch_size * self.world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was used. It is the same on every rank."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Resume from a state; see `Stream.load_state_dict`."""
        self.stream.load_state_dict(state, ignore)

    def _first_rows(self, global_size: int) -> Iterator[int]:
        """Yield the first row of each global batch that is left in this pass."""
        row = self.stream.next_row
        end = self.stream.passes.end_of(row)
        while (end is None or row < end) and self.stream.has_batch(row, global_size):
            yield row
            row = self.stream.passes.skip_steps(row, 1, global_size)

    def _make_ahead(self, make: Callable[[int], Batch], first_rows: Iterator[int]) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="gristmill-loader")
        coming: deque[Future[Batch]] = deque()
        is_finalizing = sys.is_finalizing  # when the interpreter exits, modules are cleared before generators
        try:
            for row in first_rows:
                coming.append(pool.submit(make, row))
                if len(coming) > self._prefetch:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            if not is_finalizing():
                pool.shutdown(wait=True, cancel_futures=True)


def make_loader(stream: Stream, batch_size: int, num_workers: int) -> tuple[str, Iterable[Batch]]:
    """Make a loader with worker processes, or (0) one with a thread, and its name."""
    if not num_workers:
        return "TorchLoader, 1 thread", TorchLoader(stream, batch_size, rank=0, world_size=1, num_threads=1)
    dataset = TorchDataset(stream, batch_size, rank=0, world_size=1)
    method = _choose_start_method(stream, num_workers)
    loader: Iterable[Batch] = DataLoader(
        dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=method
    )
    return f"DataLoader, {num_workers} workers", loader


def run_loader_workers(
    stream: Stream, state: Mapping[str, Any], run: ElasticRun, steps: int
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Read as a `RankReader`, with worker processes for one rank at a time. A run's batches are all in memory."""
    ranks = []
    for rank in range(run.world_size):
        dataset = TorchDataset(pickle.loads(pickle.dumps(stream)), run.batch_size, rank=rank, world_size=run.world_size)
        dataset.load_state_dict(state)
        with warnings.catch_warnings():  # having more workers than cores is intended, and no thread is running
            warnings.simplefilter("ignore")
            method = _choose_start_method(stream, run.num_workers)
            loader = DataLoader(dataset, batch_size=None, num_workers=run.num_workers, multiprocessing_context=method)
            batches = list(itertools.islice(loader, steps))
        ranks.append([(batch, dataset.state_after(batch)) for batch in batches])
    for step in zip(*ranks, strict=True):
        yield from step


def _choose_start_method(stream: Stream, num_workers: int) -> str | None:
    """Choose how worker processes start: forked where possible, because any other imports torch again (seconds)."""
    if not num_workers or sys.platform != "linux":
        return None
    return "spawn" if stream.reader.is_remote else "fork"  # a fork has no clients of stores
