"""`AccelerateLoader`: the batches of a stream for a loop with accelerate, which saves and loads its position.

`Accelerator.prepare` would shard a DataLoader again, and its loaders read one batch ahead, so they do not know what was
used. This loader needs no `prepare`: it has the rows of its rank, moves them to the device, is part of `save_state` and
`load_state`, and tells `accumulate` which batch is the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState

from gristmill.stream.torch.loader import TorchLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accelerate import Accelerator

    from gristmill.stream.collate import Batch
    from gristmill.stream.stream import Stream

__all__ = ["AccelerateLoader"]


class AccelerateLoader(TorchLoader, DataLoaderStateMixin):  # type: ignore[misc]  # accelerate is not checked
    """A `TorchLoader` on the device and with the ranks of an `Accelerator`; do not pass it to `prepare`.

    `accelerator.save_state` saves its position, and `load_state` resumes there, with any number of processes, rows in a
    batch and steps of accumulation.
    """

    def __init__(self, accelerator: Accelerator, stream: Stream, batch_size: int | None = None, **options: Any) -> None:
        parallel = getattr(accelerator, "parallelism_config", None)
        group_size = 1 if parallel is None else parallel.non_data_parallel_size
        rank, world_size = accelerator.process_index // group_size, accelerator.num_processes // group_size
        super().__init__(stream, batch_size, rank=rank, world_size=world_size, **options)
        self.gradient_state = GradientState()
        self._device = accelerator.device
        accelerator.register_for_checkpointing(self)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the epoch."""
        return self._place(super().__iter__())

    def _place(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        self.begin()
        try:
            for batch in batches:
                row = batch.next_row
                global_size = self.batch_size * self.world_size
                is_last = row == self.stream.passes.end_of(batch.first_row)
                self.end_of_dataloader = is_last or not self.stream.has_batch(row, global_size)
                for name, value in batch.items():
                    batch[name] = value.to(self._device, non_blocking=True) if hasattr(value, "to") else value
                yield batch
        finally:
            self.end()
