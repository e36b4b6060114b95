"""`TorchDataset`: whole batches for `DataLoader(dataset, batch_size=None, num_workers=…)`.

Worker w of W makes the steps w, w + W, w + 2W, …, and a DataLoader takes from its workers in turn: so batches arrive in
the order of steps, whatever W is. Workers read ahead; therefore the state to save is not that of the dataset but that
of the last batch which was used, and each batch knows its `next_row`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info

from gristmill.core.errors import NoStateError, UsageError
from gristmill.stream.arguments import check_ranks
from gristmill.stream.collate import Batch
from gristmill.stream.torch.epochs import check_epoch, count_epoch_steps, count_pass_steps, warn_of_endless
from gristmill.stream.torch.ranks import Ranks
from gristmill.stream.torch.tensors import as_tensors
from gristmill.stream.torch.wrappers import refuse_batching, refuse_second_sharding

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gristmill.stream.stream import Stream

_WORKER = "worker"


class TorchDataset(IterableDataset[Batch]):
    """The batches of one rank; each pass is an epoch, where the stream has epochs (`Stream(…, epochs=3)`).

    The first pass goes on where the stream stands, each one after it at the next epoch, in another order; a pass behind
    the last is refused. A pass that was left goes on where it was left, as with `TorchLoader`; with worker processes,
    which read ahead, only after `load_state_dict(state_after(batch))`. Make it in the process that iterates it: one
    that was carried into another knows nothing of the passes there.
    """

    def __init__(
        self, stream: Stream, batch_size: int, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        self.stream = stream
        self.batch_size, _, _ = check_ranks(batch_size, 0, 1)
        self._ranks = Ranks(rank, world_size)
        self.stream.position.share()
        self.stream.accounting.share()
        self._num_passes = self._num_worker_passes = 0
        """In this process: persistent workers begin each with the seed of the first."""

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        return self._ranks.world_size

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with the next pass; in the midst of it already, nothing is done. Trainers call this."""
        refuse_second_sharding(self.world_size)
        self.stream.set_epoch(epoch)

    def __iter__(self) -> Pass:
        worker = _worker()
        try:
            return self._begin_pass(worker)
        except UsageError as error:
            if worker.pass_seed is None:
                raise
            # A persistent worker that fails here dies without a word; the first batch is allowed to fail.
            return Pass(self, 0, worker, refusal=error)

    def _begin_pass(self, worker: _Worker) -> Pass:
        stream, global_size = self.stream, self.batch_size * self.world_size
        refuse_second_sharding(self.world_size)
        check_epoch(stream, global_size)
        if worker.pass_seed is None:
            first_row = stream.begin_pass(global_size)
            if self._num_passes:
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
        return Pass(self, first_row, worker)

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return count_epoch_steps(self.stream, self.batch_size * self.world_size)

    @property
    def steps_left(self) -> int:
        """Steps of the next pass: fewer than `len` after a resume in the midst of an epoch."""
        row = self.stream.position.next_pass(self.stream.passes)
        return count_pass_steps(self.stream, row, self.batch_size * self.world_size)

    def state_after(self, batch: Batch) -> dict[str, Any]:
        """The state of a run that has used this batch and all before it; the same on every rank."""
        return self.stream.state_dict(row=batch.next_row)

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Go on from `state_after`, with any number of workers and ranks: the next pass does, also of live workers."""
        self.stream.load_state_dict(state, ignore)

    if not TYPE_CHECKING:  # else every name would pass for one of its attributes

        def __getattr__(self, name: str) -> Any:
            # Not a method: torchdata would take the dataset for one that knows its state.
            if name == "state_dict":
                raise NoStateError(
                    "a TorchDataset has no state_dict: its DataLoader reads ahead, and only batches know what was used",
                    help="save dataset.state_after(batch), batch being the last one that was used",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class _Worker(NamedTuple):
    number: int
    num_workers: int
    """0: the process itself."""
    pass_seed: int | None
    """Which all workers of a pass share."""


def _worker() -> _Worker:
    info = get_worker_info()
    return _Worker(0, 0, None) if info is None else _Worker(info.id, info.num_workers, info.seed - info.id)


class Pass(Iterator[Batch]):
    """What one worker gives in one pass; its state is for torchdata's StatefulDataLoader."""

    def __init__(
        self, dataset: TorchDataset, first_row: int, worker: _Worker, refusal: UsageError | None = None
    ) -> None:
        self._dataset = dataset
        self._first_row = first_row
        self._step = worker.number
        self._worker = worker
        self._rank, self._world_size = dataset.rank, dataset.world_size
        self._refusal = refusal
        self._has_begun = False

    def __next__(self) -> Batch:
        dataset = self._dataset
        stream, global_size = dataset.stream, dataset.batch_size * self._world_size
        if self._refusal is not None:
            raise self._refusal
        if not self._has_begun:
            refuse_batching()
            self._has_begun = True
        row = self._first_row + self._step * global_size
        if row >= self._end or not stream.has_batch(row, global_size):
            if self._worker.num_workers:
                stream.position.end_pass(self._worker.number)
            raise StopIteration
        readers = max(self._worker.num_workers, 1)
        batch = stream.batch_at(row, dataset.batch_size, self._rank, self._world_size, num_readers=readers)
        self._note_batch(batch)
        self._step += readers
        return as_tensors(batch)

    @property
    def _end(self) -> float:
        end = self._dataset.stream.passes.end_of(self._first_row)
        return float("inf") if end is None else end

    def _note_batch(self, batch: Batch) -> None:
        """What a worker makes is handed out later, by another process."""
        stream = self._dataset.stream
        if not self._worker.num_workers:
            stream.advance(batch, None)
            stream.position.move_to(batch.next_row, by_dataset=True)
        elif stream.accounting.workers is not None:
            stream.accounting.workers.add(batch, self._worker.number, batch.next_row)

    def state_dict(self) -> dict[str, Any]:
        """Of what this worker has made."""
        return {**self._dataset.stream.state_dict(row=self._first_row), _WORKER: self._of_loader()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`, as the same worker of a loader of the same kind."""
        was = dict(state[_WORKER])
        step = was.pop("next_step")
        for name, value in self._of_loader().items():
            if name != "next_step" and was.get(name) != value:
                raise UsageError(
                    f"this state is of a loader with {name} {was.get(name)}, not {value}",
                    help="a StatefulDataLoader resumes as it was; to change it, save dataset.state_after(batch)",
                )
        plain = {name: value for name, value in state.items() if name != _WORKER}
        stream = self._dataset.stream
        self._first_row = stream.check_state(plain).row
        self._step = step
        if self._worker.num_workers:
            stream.position.resume_pass(self._first_row)
        else:
            global_size = self._dataset.batch_size * self._world_size
            stream.position.move_to(int(min(self._first_row + step * global_size, self._end)), by_dataset=True)

    def _of_loader(self) -> dict[str, int]:
        return {
            "number": self._worker.number,
            "num_workers": self._worker.num_workers,
            "next_step": self._step,
            "batch_size": self._dataset.batch_size,
            "world_size": self._world_size,
        }
