"""`StreamDataModule`: a stream as the training data of a Lightning Trainer, with its position in every checkpoint.

Lightning counts batches, and fetches one more than it has used. So the position is that of the batch that was last
moved to the device, which happens right before it is trained. The loader has no length: an epoch ends where the rows
end, however many batches that are now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule

from gristmill.stream.resumable import check_stream
from gristmill.stream.torch.loader import TorchLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.stream.collate import Batch
    from gristmill.stream.stream import Stream

__all__ = ["StreamDataModule"]


class StreamDataModule(LightningDataModule):  # type: ignore[misc]  # lightning is not checked
    """Training data, and perhaps validation data, for `trainer.fit(model, datamodule=…, ckpt_path=…)`.

    Each epoch of Lightning is one of the stream. A checkpoint resumes with any number of devices, rows in a batch and
    accumulated batches. `loader_options` are those of `TorchLoader`.
    """

    def __init__(
        self, stream: Stream, batch_size: int | None = None, validation: Stream | None = None, **loader_options: Any
    ) -> None:
        super().__init__()
        check_stream(stream, self)
        self.stream = stream
        self._validation = validation
        self._batch_size = batch_size
        self._loader_options = loader_options
        self._next_row = stream.next_row

    def train_dataloader(self) -> LoaderWithoutLength:
        """Make the loader of this rank."""
        return LoaderWithoutLength(self, TorchLoader(self.stream, self._batch_size, **self._loader_options))

    def val_dataloader(self) -> Any:
        """Make the loader of the validation rows, which begins at row 0 each time."""
        return [] if self._validation is None else TorchLoader(self._validation, self._batch_size, restart=True)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Note which batch is trained next. Lightning calls this for every batch."""
        del dataloader_idx
        if self.trainer is not None and self.trainer.training:
            self._next_row = batch.next_row
        return batch

    def begin_pass(self) -> None:
        """Move the stream back to the first row that was not used: a pass may have been left after fetching more."""
        if self.stream.next_row != self._next_row:
            self.stream.position.move_to(self._next_row)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was used. It is part of every checkpoint."""
        return self.stream.state_dict(row=self._next_row)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from the state of a checkpoint."""
        self.stream.load_state_dict(state_dict)
        self._next_row = self.stream.next_row


class LoaderWithoutLength:
    """The passes of a `TorchLoader`, whose state is that of the data module."""

    def __init__(self, module: StreamDataModule, loader: TorchLoader) -> None:
        self._module = module
        self._loader = loader
        self.state_dict = module.state_dict  # otherwise Lightning warns that the loader cannot resume
        self.load_state_dict = module.load_state_dict

    def __iter__(self) -> Iterator[Batch]:
        self._module.begin_pass()
        return iter(self._loader)
