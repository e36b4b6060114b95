"""`TorchDataset`: whole batches for `DataLoader(dataset, batch_size=None, num_workers=…)`.

Worker w of W makes the steps w, w + W, w + 2W, …, and a DataLoader takes from its workers in turn: so batches arrive in
the order of steps, whatever W is. Workers read ahead; therefore the state to save is not that of the dataset but that
of the last batch which was used, and each batch knows its `next_row`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from gristmill.core.errors import UsageError
from gristmill.stream.collate import Batch
from gristmill.stream.stream import check_ranks
from gristmill.stream.torch.ranks import find_ranks
from gristmill.stream.torch.tensors import as_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gristmill.stream.stream import Stream

_WORKER = "worker"


class TorchDataset(IterableDataset[Batch]):
    """The batches of one rank, from where the stream stands; iterating again begins there again."""

    def __init__(
        self, stream: Stream, batch_size: int, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self.rank, self.world_size = find_ranks(rank, world_size)
        check_ranks(batch_size, self.rank, self.world_size)
        self._first_row = stream.first_row
        self._next_step = 0
        self._saved: Mapping[str, int] | None = None
        """What a worker had made when the state was saved; for the next iteration."""

    def __iter__(self) -> Iterator[Batch]:
        worker, num_workers = _worker()
        if get_worker_info() is not None:
            self.stream.forget_files()  # a forked process must not share the lock of its parent
        step = worker
        if self._saved is not None:
            saved, self._saved = self._saved, None
            # A process that has made every batch has come to a step, from which any number of workers can go on.
            step = int(saved["next_step"]) + (worker if saved["num_workers"] == 1 else 0)
        self._next_step = step
        global_size = self.batch_size * self.world_size
        while self.stream.has_batch(row := self._first_row + step * global_size, global_size):
            batch = as_tensors(self.stream.batch_at(row, self.batch_size, self.rank, self.world_size))
            step += num_workers
            self._next_step = step  # before the batch is out: whoever has it may ask for the state
            yield batch

    def __len__(self) -> int:
        """Steps from where the stream stood to its end."""
        return self.stream.steps_from(self._first_row, self.batch_size * self.world_size)

    def state_after(self, batch: Batch) -> dict[str, Any]:
        """The state of a run that has used this batch and all before it; the same on every rank."""
        return self.stream.state_dict(row=batch.next_row)

    def state_dict(self) -> dict[str, Any]:
        """Of what this process has *made*, for torchdata's StatefulDataLoader; save `state_after` otherwise."""
        worker, num_workers = _worker()
        state = self.stream.state_dict(row=self._first_row)
        state[_WORKER] = {
            "number": worker,
            "num_workers": num_workers,
            "next_step": self._next_step,
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }
        return state

    def load_state_dict(self, state: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        """Go on from `state_after` with any number of workers and ranks, or from `state_dict` with the same."""
        plain = {name: value for name, value in state.items() if name != _WORKER}
        self.stream.load_state_dict(plain, ignore)
        self._first_row = self.stream.first_row
        self._saved = state.get(_WORKER)
        if self._saved is not None:
            self._check_same_loader(self._saved)

    def _check_same_loader(self, saved: Mapping[str, int]) -> None:
        now = {"batch_size": self.batch_size, "world_size": self.world_size}
        if saved["num_workers"] > 1:
            now["number"], now["num_workers"] = _worker()
        for name, value in now.items():
            if saved[name] != value:
                raise UsageError(
                    f"this state is of a loader with {name} {saved[name]}, not {value}",
                    help="a StatefulDataLoader resumes as it was; to change it, save dataset.state_after(batch)",
                )


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
