"""`StreamTrainer`: a `transformers.Trainer` that reads a stream and resumes it exactly, with any ranks and batch size.

A Trainer alone resumes by arithmetic on its number of steps: the checkpoint's steps, times today's batch size, are
skipped. If the global batch has changed since, rows come twice or never. Here the checkpoint holds the state of the
stream, which is a row number. From it follow the rest of the epoch, the number of steps that are left, and
`state.epoch`.

Written against transformers 5.22: `_init_training_state`, `_prepare_input` and `_run_epoch` are its inner methods. If a
version has no such methods, the class cannot be made.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from gristmill.core.errors import UsageError
from gristmill.stream.collate import Batch
from gristmill.stream.resumable import check_stream
from gristmill.stream.torch.dataset import count_pass_steps
from gristmill.stream.torch.loader import TorchLoader

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from gristmill.stream.stream import Stream

__all__ = ["StreamTrainer", "StreamTrainerMixin"]

for _name in ("_init_training_state", "_prepare_input", "_run_epoch", "set_initial_training_values"):
    if not hasattr(Trainer, _name):
        raise ImportError(f"StreamTrainer needs a Trainer with {_name}, as in transformers 5.22")


class StreamPosition(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers is not checked
    """A callback that puts the state of the stream into `trainer_state.json`, where the Trainer keeps its own."""

    def __init__(self) -> None:
        self._loader: TorchLoader | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, train_dataloader: Any, **rest: Any) -> None:
        """Find the loader of the training, which has the stream."""
        del args, state, control, rest
        self._loader = train_dataloader

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Set the epoch, which a Trainer counts in steps, by the row number."""
        del args, control, rest
        if self._loader is not None:
            stream = self._loader.stream
            epoch_rows = stream.passes.epoch_rows or stream.num_rows
            state.epoch = stream.next_row / epoch_rows if epoch_rows else 0.0

    def state(self) -> dict[str, Any]:
        """Return what the checkpoint holds: the stream after the last batch that was trained."""
        saved = {} if self._loader is None else {"stream_state": self._loader.state_dict()}
        return {"args": {}, "attributes": saved}


class StreamTrainerMixin:
    """A mixin that makes any Trainer read a stream: `class MyTrainer(StreamTrainerMixin, OtherTrainer)`.

    Args:
        stream: What to train on, instead of `train_dataset`. Its `collate` says what the model gets, and its `epochs`
            must be as many as `num_train_epochs`, unless `max_steps` ends the training.

    All other arguments are those of the Trainer.
    """

    if TYPE_CHECKING:  # of the Trainer
        args: Any
        accelerator: Any
        state: Any
        _train_batch_size: int

    def __init__(self, *args: Any, stream: Stream, **options: Any) -> None:
        check_stream(stream, self)
        arguments = inspect.signature(super().__init__).bind_partial(*args, **options).arguments
        if arguments.get("train_dataset") is None:
            options |= _make_stand_in(super().__init__, stream)
        super().__init__(*args, **options)
        if self.args.dataloader_drop_last != stream.arguments.drop_last:
            wanted = self.args.dataloader_drop_last
            raise UsageError(
                f"dataloader_drop_last is {wanted}, but the stream has drop_last={stream.arguments.drop_last}",
                help=f"write Stream(…, drop_last={wanted})",
            )
        ignored = [name for name in ("cu_seqlens", "document_ids") if name in stream.collate.fields]
        if ignored and not stream.collate.flatten:
            warnings.warn(
                f"models of transformers ignore {' and '.join(ignored)}, so tokens see other documents of their row; "
                'write Collate(fields=("input_ids", "labels", "position_ids", "cu_seqlens"), flatten=True)',
                stacklevel=2,
            )
        self.stream = stream
        self._first_state: Mapping[str, Any] = stream.state_dict()
        self._first_step = 0
        self.add_callback(StreamPosition())  # type: ignore[attr-defined]

    def train(
        self,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,  # noqa: FBT001  (the Trainer's argument)
        *args: Any,
        **options: Any,
    ) -> Any:
        """Train from the position of the stream on, or from where a checkpoint left it; see `Trainer.train`."""
        folder: Any = resume_from_checkpoint or None
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder is not None:
            self._load_position(Path(folder))
        else:
            self._first_state, self._first_step = self.stream.state_dict(), 0
        resume = resume_from_checkpoint if folder is None else str(folder)
        return super().train(resume, *args, **options)  # type: ignore[misc]

    def _load_position(self, folder: Path) -> None:
        path = folder / TRAINER_STATE_NAME
        if not path.is_file():
            raise UsageError(f"{folder} is not a checkpoint of a Trainer: it has no {TRAINER_STATE_NAME}")
        state = TrainerState.load_from_json(str(path))
        saved = state.stateful_callbacks.get(StreamPosition.__name__, {})
        attributes = saved.get("attributes", {}) if isinstance(saved, dict) else {}
        if "stream_state" not in attributes:
            raise UsageError(
                f"the checkpoint {folder} does not know where its stream was: it was not saved by a StreamTrainer",
                help="load its state into the stream yourself with stream.load_state_dict, and train without "
                "resume_from_checkpoint",
            )
        self._first_state, self._first_step = attributes["stream_state"], state.global_step
        self.stream.load_state_dict(self._first_state)

    def get_train_dataloader(self) -> TorchLoader:
        """Make the loader of this data-parallel rank, at the row where the training begins."""
        self.stream.load_state_dict(self._first_state)  # `auto_find_batch_size` begins a second time
        parallel = getattr(self.accelerator, "parallelism_config", None)
        # Ranks of one group of tensor or context parallelism, which are neighbours, read the same rows.
        group_size = 1 if parallel is None else parallel.non_data_parallel_size
        return TorchLoader(
            self.stream,
            self._train_batch_size if self.stream.token_batches is None else None,
            rank=self.args.process_index // group_size,
            world_size=self.args.world_size // group_size,
            num_threads=max(self.args.dataloader_num_workers, 1),
        )

    def _prepare_input(self, data: Any) -> Any:
        """Move a batch to the device, and keep its attributes, which `type(data)({…})` loses."""
        prepared = super()._prepare_input(data)  # type: ignore[misc]
        if isinstance(data, Batch):
            vars(prepared).update(vars(data))
        return prepared

    def set_initial_training_values(self, args: Any, dataloader: TorchLoader) -> tuple[Any, ...]:
        """Count epochs and steps by rows: those of the checkpoint, and those that are left with today's batch size."""
        global_size, accumulated = dataloader.batch_size * dataloader.world_size, args.gradient_accumulation_steps
        passes, first_row = self.stream.passes, self.stream.next_row
        epoch_rows = passes.epoch_rows or passes.num_rows
        if args.max_steps > 0:
            max_steps = args.max_steps
            num_left = _count_updates(self.stream, first_row, passes.num_rows, global_size, accumulated)
            if num_left is not None and self._first_step + num_left < max_steps:
                raise UsageError(
                    f"max_steps is {max_steps:,}, but the stream ends after {self._first_step + num_left:,} steps",
                    help="set a later end of the stream, or fewer steps",
                )
            num_epochs = sys.maxsize if passes.num_rows is None else math.ceil(passes.num_rows / (epoch_rows or 1))
            num_samples = max_steps * global_size * accumulated
        else:
            last_row = _find_last_row(self.stream, args.num_train_epochs)
            num_left = _count_updates(self.stream, first_row, last_row, global_size, accumulated)
            max_steps, num_epochs = self._first_step + (num_left or 0), math.ceil(args.num_train_epochs)
            num_samples = last_row
        steps = max_steps * accumulated
        if epoch_rows is not None:
            steps = count_pass_steps(self.stream, 0, global_size)
        num_updates = max(math.ceil(steps / accumulated), 1)
        total_size = global_size * accumulated
        return num_epochs, num_updates, epoch_rows or num_samples, num_samples, total_size, steps, max_steps

    def _init_training_state(self, *args: Any, **options: Any) -> tuple[int, int]:
        """Begin in the epoch of the stream, and skip no batches: the loader begins where it should."""
        super()._init_training_state(*args, **options)  # type: ignore[misc]
        return self.stream.epoch, 0

    def _run_epoch(self, *, train_dataloader: TorchLoader, **options: Any) -> Any:
        """Run what is left of an epoch."""
        if train_dataloader.stream.passes.end_of(self.stream.next_row) is not None:
            steps = train_dataloader.steps_left
            options["steps_in_epoch"] = steps
            options["num_update_steps_per_epoch"] = math.ceil(steps / self.args.gradient_accumulation_steps)
        return super()._run_epoch(train_dataloader=train_dataloader, **options)  # type: ignore[misc]


def _make_stand_in(init: Any, stream: Stream) -> dict[str, Any]:
    """Make the argument `train_dataset` for a Trainer that insists on one, as TRL's: a row that is never trained.

    Such a Trainer looks at its columns, and prepares it. What is trained comes from `get_train_dataloader`.
    """
    if getattr(init, "__func__", None) is Trainer.__init__ or "datasets" not in sys.modules:
        return {}
    ids = stream.rows(0, 1)["input_ids"].ravel().tolist()
    # All of them are labels: TRL drops rows without any, and an empty dataset is refused.
    columns = {"input_ids": [ids], "labels": [ids]}
    return {"train_dataset": sys.modules["datasets"].Dataset.from_dict(columns)}


def _find_last_row(stream: Stream, epochs: float) -> int:
    """Find the row after the last one of this many epochs."""
    epoch_rows = stream.passes.epoch_rows or stream.passes.num_rows
    if epoch_rows is None:
        raise UsageError(
            "the stream is endless, and max_steps is not set: the training would never end",
            help="set max_steps, or Stream(…, epochs=1)",
        )
    last_row = math.ceil(epochs * epoch_rows)
    if stream.num_rows is not None and last_row > stream.num_rows:
        raise UsageError(
            f"num_train_epochs is {epochs:g}, but the stream ends after {stream.num_rows / epoch_rows:g}",
            help=f"write Stream(…, epochs={epochs:g}), or set num_train_epochs to what the stream has",
        )
    return last_row


def _count_updates(stream: Stream, row: int, last_row: int | None, global_size: int, accumulated: int) -> int | None:
    """Count the steps of the optimizer from a row to another one; None: without end.

    Batches do not continue into the next pass, and the last step of a pass may accumulate fewer of them.
    """
    if last_row is None:
        return None
    num_updates = 0
    while row < last_row:
        end = stream.passes.end_of(row) or last_row
        steps = stream.passes.count_steps(row, min(end, last_row), global_size)
        num_updates += math.ceil(steps / accumulated)
        row = end
    return num_updates


class StreamTrainer(StreamTrainerMixin, Trainer):  # type: ignore[misc]  # transformers is not checked
    """A `Trainer` that trains on a stream: `StreamTrainer(model, args, stream=stream)`.

    `train(resume_from_checkpoint=True)` continues with the row after the last one that was trained, with any number of
    ranks, batch size and accumulation.
    """
