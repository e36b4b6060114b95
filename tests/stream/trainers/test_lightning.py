"""`StreamDataModule` with the real Lightning Trainer: checkpoints in and between epochs, and other batches."""

import logging
import runpy
from pathlib import Path

import pytest

from gristmill.core.errors import UsageError
from gristmill.stream import Stream

pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning: few workers, few batches, no logger

import torch  # noqa: E402
from lightning.pytorch import LightningModule, Trainer  # noqa: E402

from gristmill.stream.trainers.lightning import StreamDataModule  # noqa: E402

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


def make_stream(packed, **options):
    from gristmill.stream import Collate

    return Stream(packed, seed=7, collate=Collate(fields=("input_ids", "row_mask")), **options)


def fit(packed, folder, batch_size, *, save_at=None, resume=False, accumulate=1, epochs=2, validation=None, **options):
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
    data = StreamDataModule(make_stream(packed, epochs=2), batch_size, validation)
    trainer.fit(model, datamodule=data, ckpt_path=path if resume else None, weights_only=False)
    return model, trainer


@pytest.mark.parametrize(
    ("batch_size", "save_at", "accumulate"),
    [(4, 3, 1), (8, 9, 1), (8, 7, 1), (6, 2, 2)],
    ids=["first epoch", "second epoch", "between epochs", "accumulated"],
)
def test_a_resume_with_another_batch_reads_every_row_once(packed, oracle, tmp_path, batch_size, save_at, accumulate):
    first, _ = fit(packed, tmp_path, batch_size, save_at=save_at, accumulate=accumulate)
    num_batches = save_at * accumulate
    epoch, batch = divmod(num_batches, -(-53 // batch_size))
    row = epoch * 53 + batch * batch_size
    assert first.rows[:row] == oracle[:row]
    rest, trainer = fit(packed, tmp_path, 5, resume=True, accumulate=3)
    assert rest.rows == oracle[row:106]
    assert trainer.current_epoch == 2


def test_a_limit_of_batches_skips_no_row(packed, oracle, tmp_path):
    """Lightning fetches a batch that it does not use."""
    model, _ = fit(packed, tmp_path, 5, epochs=3, limit_train_batches=4)
    assert model.rows == oracle[:53]  # the third pass is the rest of the epoch


def test_validation_begins_anew(packed, oracle, tmp_path):
    model, _ = fit(packed, tmp_path, 20, validation=make_stream(packed, rows=9), num_sanity_val_steps=0)
    assert model.rows == oracle[:106]
    assert model.validated == 2 * oracle[:9]


def test_more_epochs_than_the_stream_has_are_refused(packed, tmp_path):
    with pytest.raises(UsageError, match="2 epochs were read"):
        fit(packed, tmp_path, 53, epochs=3)


def test_the_example(packed, oracle, tmp_path, monkeypatch):
    (tmp_path / "rows").symlink_to(packed)
    for options in (["--batch-size", "4", "--steps", "5"], ["--batch-size", "7"]):
        monkeypatch.setattr("sys.argv", ["train_lightning.py", str(tmp_path / "rows"), *options])
        runpy.run_path(str(Path(__file__).parents[3] / "examples" / "train_lightning.py"))
    assert (tmp_path / "trained.txt").read_text().splitlines() == [str(row) for row in oracle[:53]]
