"""`TorchLoader`: batches as tensors, made ahead by threads of this process.

Making a batch is one kernel that holds no lock, so threads do it beside the training step, and nothing has to travel
between processes. The threads end with the iteration; nothing else is started.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gristmill.core.numbers import check_bool, check_whole_number
from gristmill.stream.arguments import check_ranks
from gristmill.stream.torch.epochs import check_epoch, count_epoch_steps, count_pass_steps, warn_of_endless
from gristmill.stream.torch.ranks import Ranks
from gristmill.stream.torch.tensors import as_tensors, pinned_array

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from concurrent.futures import Future

    from gristmill.stream.accounting import Accounting
    from gristmill.stream.collate import Batch
    from gristmill.stream.stream import Stream

_MOST = 1024
"""Threads, and batches made ahead."""


class TorchLoader:
    """The batches of one rank, from where the stream stands, which moves with each; iterating again goes on there.

    Args:
        stream: What to read.
        batch_size: Rows for each rank.
        rank: Among the data-parallel ranks; by default from `torch.distributed` or the environment.
        world_size: How many of them there are.
        num_threads: That make batches ahead; 0: each batch is made when it is asked for.
        prefetch: How many batches are made ahead.
        pin_memory: Whether batches lie in pinned memory; None: if there is a GPU.
    """

    def __init__(
        self,
        stream: Stream,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int = 1,
        prefetch: int = 4,
        pin_memory: bool | None = None,
    ) -> None:
        self.stream = stream
        self.batch_size, _, _ = check_ranks(batch_size, 0, 1)
        self._ranks = Ranks(rank, world_size)
        self._num_threads = check_whole_number("num_threads", num_threads, most=_MOST)
        self._prefetch = check_whole_number("prefetch", prefetch, least=1, most=_MOST)
        pins = torch.cuda.is_available() if pin_memory is None else check_bool("pin_memory", pin_memory)
        self._has_begun = False
        self._new: Any = pinned_array if pins else np.empty

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        return self._ranks.world_size

    @property
    def accounting(self) -> Accounting:
        """What was handed out so far, against plan: the stream's."""
        return self.stream.accounting

    def __iter__(self) -> Iterator[Batch]:
        """One pass: the epoch in which the stream stands, from there on."""
        check_epoch(self.stream, self._global_size)
        row = self.stream.begin_pass(self._global_size)
        if self._has_begun:
            warn_of_endless(self.stream)
        self._has_begun = True
        self.stream.refuse_ended(row, self._global_size)
        return self._pass()

    def _pass(self) -> Iterator[Batch]:
        batches = self._make_ahead() if self._num_threads else map(self._make, self._first_rows())
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            yield self.stream.advance(batch, time.perf_counter() - start)

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return count_epoch_steps(self.stream, self._global_size)

    @property
    def steps_left(self) -> int:
        """Steps from here to the end of the epoch; at its end, of the next one, and 0 at the end of the stream."""
        row = self.stream.position.next_pass(self.stream.passes)
        return count_pass_steps(self.stream, row, self._global_size)

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch; in the midst of it already, nothing is done."""
        self.stream.set_epoch(epoch)

    @property
    def _global_size(self) -> int:
        return self.batch_size * self.world_size

    def state_dict(self) -> dict[str, Any]:
        """The stream's: after the last batch that was handed out, whatever was made ahead; the same on every rank."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Go on from a state; see `Stream.load_state_dict`."""
        self.stream.load_state_dict(state, ignore)

    def _first_rows(self) -> Iterator[int]:
        """Of the global batches that follow in this pass."""
        row, global_size = self.stream.next_row, self._global_size
        end = self.stream.passes.end_of(row)
        while (end is None or row < end) and self.stream.has_batch(row, global_size):
            yield row
            row += global_size

    def _make(self, row: int) -> Batch:
        return as_tensors(self.stream.batch_at(row, self.batch_size, self.rank, self.world_size, new=self._new))

    def _make_ahead(self) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="gristmill-loader")
        coming: deque[Future[Batch]] = deque()
        is_finalizing = sys.is_finalizing  # at the end of the interpreter modules are emptied before generators are
        try:
            for row in self._first_rows():
                coming.append(pool.submit(self._make, row))
                if len(coming) > self._prefetch:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            if not is_finalizing():
                pool.shutdown(wait=True, cancel_futures=True)
