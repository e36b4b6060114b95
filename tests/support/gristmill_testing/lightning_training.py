"""A real Lightning `Trainer` on a model of one weight, which notes the rows that it is trained on.

Apart from the tests, because Lightning takes seconds to import and all processes that run tests import all tests.
"""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer

from gristmill.stream.trainers.lightning import StreamDataModule

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Recorder(LightningModule):
    """A model of one weight that notes the rows it is trained on."""

    def __init__(self, save_at=None, path=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.rows, self.validated = [], []
        self.save_at, self.path = save_at, path

    def training_step(self, batch):
        self.rows += batch["input_ids"][batch["row_mask"]].tolist()
        return self.weight.sum()

    def validation_step(self, batch):
        self.validated += batch["input_ids"][batch["row_mask"]].tolist()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step == self.save_at and not self.path.exists():
            self.trainer.save_checkpoint(self.path)
            self.trainer.should_stop = True

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_on_stream(
    stream, folder, batch_size, *, save_at=None, resume=False, accumulate=1, epochs=2, validation=None, **options
):
    """Train, from the checkpoint in `folder` or up to it, and give the model and the trainer."""
    path = folder / "saved.ckpt"
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=accumulate,
        min_epochs=0,
        **quiet,
        **options,
    )
    model = Recorder(save_at, path)
    data = StreamDataModule(stream, batch_size, validation)
    trainer.fit(model, datamodule=data, ckpt_path=path if resume else None, weights_only=False)
    return model, trainer
