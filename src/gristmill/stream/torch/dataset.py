"""`TorchDataset`: whole batches for `DataLoader(dataset, batch_size=None, num_workers=…)`.

Worker w of W makes the steps w, w + W, w + 2W, …, and a DataLoader takes batches from its workers in turn. So batches
arrive in the order of steps, for every W. Workers read ahead, so the state to save is not that of the dataset but that
of the last batch that was used: each batch knows its `next_row`. Each loop over a loader is one epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info

from gristmill.core.checks import check_bool
from gristmill.core.errors import NoStateError, UsageError
from gristmill.stream.collate import Batch
from gristmill.stream.resumable import check_stream
from gristmill.stream.torch.ranks import Ranks, as_tensors, refuse_batching, refuse_second_sharding
from gristmill.stream.torch.worker_ring import send_by_ring

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gristmill.stream.stream import Stream


_WORKER = "worker"


class TorchDataset(IterableDataset[Batch]):
    """The batches of one rank. Each pass is an epoch, if the stream has epochs (`Stream(…, epochs=3)`).

    The first pass continues at the position of the stream. Each later pass begins at the next epoch, which has another
    order; a pass after the last epoch is refused. An abandoned pass continues where it was left, as with `TorchLoader`;
    with worker processes, which read ahead, only after `load_state_dict(state_after(batch))`. With `restart`, each pass
    begins at row 0, as for validation every few steps. Create the dataset in the process that iterates it: a copy in
    another process does not know of the passes there.
    """

    def __init__(
        self,
        stream: Stream,
        batch_size: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        restart: bool = False,
    ) -> None:
        check_stream(stream, self)
        self.stream = stream
        self.restarts = check_bool("restart", restart)
        self.batch_size, _, _ = stream.check_ranks(batch_size)
        self._ranks = Ranks(rank, world_size)
        self.stream.position.share()
        self.stream.accounting.share()
        self._num_passes = self._num_worker_passes = 0
        """The passes in this process. Persistent workers begin every pass with the seed of the first one."""

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        return self._ranks.world_size

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at an epoch, unless the stream is inside it already. Trainers call this."""
        refuse_second_sharding(self.world_size)
        self.stream.set_epoch(epoch)

    def __iter__(self) -> EpochIterator:
        info = get_worker_info()
        worker = _Worker(0, 0, None) if info is None else _Worker(info.id, info.num_workers, info.seed - info.id)
        try:
            return self._begin_pass(worker)
        except UsageError as error:
            if worker.pass_seed is None:
                raise
            # A persistent worker that fails here dies without a message, so the error is raised with the first batch.
            return EpochIterator(self, 0, worker, refusal=error)

    def _begin_pass(self, worker: _Worker) -> EpochIterator:
        stream, global_size = self.stream, self.batch_size * self.world_size
        refuse_second_sharding(self.world_size)
        check_epoch(stream, global_size)
        if worker.pass_seed is not None and self.restarts:
            first_row = 0
        elif worker.pass_seed is None:
            if self.restarts:
                stream.restart()
            first_row = stream.begin_pass(global_size)
            if self._num_passes and not self.restarts:
                warn_of_endless(stream)
        else:
            reader = worker.pass_seed + self._num_worker_passes
            first_row = stream.position.begin_pass(
                reader, worker.number, worker.num_workers, stream.passes, is_first=not self._num_worker_passes
            )
            self._num_worker_passes += 1
            first_row = stream.passes.batch_begin(first_row, global_size)
        self._num_passes += 1
        stream.refuse_ended(first_row, global_size)
        return EpochIterator(self, first_row, worker)

    def __len__(self) -> int:
        """The number of steps in a whole epoch."""
        return count_epoch_steps(self.stream, self.batch_size * self.world_size)

    @property
    def steps_left(self) -> int:
        """The number of steps in the next pass: fewer than `len` after a resume inside an epoch."""
        row = 0 if self.restarts else self.stream.position.next_pass(self.stream.passes)
        return count_pass_steps(self.stream, row, self.batch_size * self.world_size)

    def state_after(self, batch: Batch) -> dict[str, Any]:
        """Return the state of a run that has used this batch and all before it. It is the same on every rank."""
        return self.stream.state_dict(row=batch.next_row)

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Resume the next pass from `state_after`, with any number of workers and ranks, also in running workers."""
        self.stream.load_state_dict(state, ignore)

    if not TYPE_CHECKING:  # otherwise type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            # Not a method, because torchdata would then take the dataset for a stateful one.
            if name == "state_dict":
                raise NoStateError(
                    "a TorchDataset has no state_dict: its DataLoader reads ahead, and only batches know what was used",
                    help="save dataset.state_after(batch), where batch is the last one that was used",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class _Worker(NamedTuple):
    number: int
    num_workers: int
    """0: there are no workers, and the process itself reads."""
    pass_seed: int | None
    """The seed that all workers of a pass share; None: there are no workers."""


class EpochIterator(Iterator[Batch]):
    """The batches of one worker in one pass. Its state is for torchdata's StatefulDataLoader."""

    def __init__(
        self, dataset: TorchDataset, first_row: int, worker: _Worker, refusal: UsageError | None = None
    ) -> None:
        self._dataset = dataset
        self._first_row = first_row
        self._step = worker.number
        self._row: int | None = None
        """Where that step begins, if it is known."""
        self._worker = worker
        self._rank, self._world_size = dataset.rank, dataset.world_size
        self._refusal = refusal
        self._has_begun = False
        if worker.num_workers:
            send_by_ring()

    def __next__(self) -> Batch:
        dataset = self._dataset
        stream, global_size = dataset.stream, dataset.batch_size * self._world_size
        if self._refusal is not None:
            raise self._refusal
        if not self._has_begun:
            refuse_batching()
            self._has_begun = True
        row = self._row
        if row is None:
            row = stream.passes.skip_steps(self._first_row, self._step, global_size)
        if row >= self._end or not stream.has_batch(row, global_size):
            if self._worker.num_workers and not dataset.restarts:
                stream.position.end_pass(self._worker.number)
            raise StopIteration
        readers = max(self._worker.num_workers, 1)
        batch = stream.batch_at(row, dataset.batch_size, self._rank, self._world_size, num_readers=readers)
        if not self._worker.num_workers:
            stream.advance(batch, None)
            stream.position.move_to(batch.next_row, by_dataset=True)
        else:  # another process will use the batch
            stream.count_in_worker(batch, self._worker.number, batch.next_row)
        self._step, self._row = self._step + readers, stream.passes.skip_steps(row, readers, global_size)
        return as_tensors(batch)

    @property
    def _end(self) -> float:
        end = self._dataset.stream.passes.end_of(self._first_row)
        return float("inf") if end is None else end

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that this worker has made."""
        return {**self._dataset.stream.state_dict(row=self._first_row), _WORKER: self._read_loader_settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict`, as the same worker of a loader with the same settings."""
        saved = dict(state[_WORKER])
        step = saved.pop("next_step")
        for name, value in self._read_loader_settings().items():
            if name != "next_step" and saved.get(name) != value:
                raise UsageError(
                    f"this state was saved by a loader with {name} {saved.get(name)}, not {value}",
                    help="a StatefulDataLoader resumes with its own settings; to change them, use dataset.state_after",
                )
        plain = {name: value for name, value in state.items() if name != _WORKER}
        stream = self._dataset.stream
        self._first_row = stream.check_state(plain).row
        self._step, self._row = step, None
        if self._worker.num_workers:
            stream.position.resume_pass(self._first_row)
        else:
            global_size = self._dataset.batch_size * self._world_size
            row = stream.passes.skip_steps(self._first_row, step, global_size)
            stream.position.move_to(int(min(row, self._end)), by_dataset=True)

    def _read_loader_settings(self) -> dict[str, int]:
        return {
            "number": self._worker.number,
            "num_workers": self._worker.num_workers,
            "next_step": self._step,
            "batch_size": self._dataset.batch_size,
            "world_size": self._world_size,
        }


def count_epoch_steps(stream: Stream, global_size: int) -> int:
    """Count the steps of a whole epoch; for a stream of one pass, all steps."""
    if stream.passes.epoch_rows is None:
        len(stream)  # raises an error for an endless stream
    return count_pass_steps(stream, 0, global_size)


def count_pass_steps(stream: Stream, row: int, global_size: int) -> int:
    """Count the steps from a row to the end of its pass; 0 at the end of the stream."""
    row = stream.passes.batch_begin(row, global_size)
    if stream.num_rows is not None and row >= stream.num_rows:
        return 0
    steps = stream.passes.steps_in_pass(row, global_size)
    return len(stream) if steps is None else steps


def check_epoch(stream: Stream, global_size: int) -> None:
    """Refuse batches that are longer than an epoch if incomplete ones are left out: there would be no batch at all."""
    rows = stream.passes.epoch_rows
    if stream.token_batches is not None and not stream.has_batch(0, global_size):
        raise UsageError(
            f"an epoch has fewer batches of batch_tokens than there are ranks ({global_size:,}), and drop_last leaves "
            "out incomplete steps",
            help="choose smaller batch_tokens, fewer ranks, a larger rows_per_epoch, or drop_last=False",
        )
    if rows is not None and stream.arguments.drop_last and rows < global_size:
        raise UsageError(
            f"an epoch has {rows:,} rows, fewer than a batch of all ranks ({global_size:,}), and drop_last leaves out "
            "incomplete ones",
            help="choose a smaller batch_size, a larger rows_per_epoch, or drop_last=False",
        )


def warn_of_endless(stream: Stream) -> None:
    """Warn that another loop over an endless stream continues where the last one ended."""
    if stream.passes.end_of(stream.next_row) is None:
        warnings.warn(
            f"this stream is endless: this loop continues at row {stream.next_row:,}, where the last one ended; set "
            "epochs= or rows_per_epoch= for loops that end",
            stacklevel=3,
        )
