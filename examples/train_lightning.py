"""A Lightning training whose checkpoints resume with any number of devices, batch size and accumulation.

    python examples/train_lightning.py rows --batch-size 4 --steps 5
    python examples/train_lightning.py rows --batch-size 7

`rows` is a dataset of packed tokens. The rows that were trained are appended to `trained.txt`.
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from gristmill.stream import Collate, Stream
from gristmill.stream.trainers.lightning import StreamDataModule


class Model(LightningModule):
    def __init__(self, log: Path) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(1 << 16, 8), torch.nn.Linear(8, 1))
        self.path = log

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with self.path.open("a") as log:
            log.writelines(f"{row}\n" for row in batch["input_ids"][batch["row_mask"]].tolist())
        return self.layers(batch["input_ids"]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


parser = argparse.ArgumentParser()
parser.add_argument("rows", type=Path)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--steps", type=int, default=-1, help="save and stop after this many")
options = parser.parse_args()

folder = options.rows.parent
stream = Stream(options.rows, seed=7, epochs=1, collate=Collate(fields=("input_ids", "labels", "row_mask")))
checkpoint = folder / "last.ckpt"
trainer = Trainer(
    max_epochs=1,
    max_steps=options.steps,
    accelerator="cpu",
    devices=1,
    logger=False,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=5, save_last=True)],
)
data = StreamDataModule(stream, options.batch_size)
trainer.fit(Model(folder / "trained.txt"), datamodule=data, ckpt_path=checkpoint if checkpoint.exists() else None)
