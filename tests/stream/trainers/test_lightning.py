"""`StreamDataModule` with the real Lightning Trainer: checkpoints in and between epochs, and other batches."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed: pip install lightning"),
    pytest.mark.filterwarnings("ignore"),  # of Lightning: few workers, few batches, no logger
]


def make_stream(packed, **options):
    return Stream(packed, seed=7, collate=Collate(fields=("input_ids", "row_mask")), **options)


def fit(packed, folder, batch_size, **options):
    from gristmill_testing.lightning_training import train_on_stream

    return train_on_stream(make_stream(packed, epochs=2), folder, batch_size, **options)


@pytest.mark.full
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


@pytest.mark.full
def test_validation_begins_anew(packed, oracle, tmp_path):
    model, _ = fit(packed, tmp_path, 20, validation=make_stream(packed, rows=9), num_sanity_val_steps=0)
    assert model.rows == oracle[:106]
    assert model.validated == 2 * oracle[:9]


@pytest.mark.full
def test_more_epochs_than_the_stream_has_are_refused(packed, tmp_path):
    with pytest.raises(UsageError, match="2 epochs were read"):
        fit(packed, tmp_path, 53, epochs=3)


@pytest.mark.full
def test_the_example(packed, oracle, tmp_path, monkeypatch):
    (tmp_path / "rows").symlink_to(packed)
    for options in (["--batch-size", "4", "--steps", "5"], ["--batch-size", "7"]):
        monkeypatch.setattr("sys.argv", ["train_lightning.py", str(tmp_path / "rows"), *options])
        runpy.run_path(str(Path(__file__).parents[3] / "examples" / "train_lightning.py"))
    assert (tmp_path / "trained.txt").read_text().splitlines() == [str(row) for row in oracle[:53]]


@pytest.mark.full
def test_a_batch_keeps_its_attributes_on_the_way_to_a_device(packed):
    import torch
    from lightning.fabric.utilities.apply_func import move_data_to_device

    batch = next(make_stream(packed).batches(4))
    batch["input_ids"] = torch.from_numpy(batch["input_ids"])
    batch["images"] = [torch.zeros(2), {"mask": torch.zeros(1)}]
    moved = move_data_to_device(batch, torch.device("meta"))
    assert type(moved) is type(batch)
    assert vars(moved).keys() == vars(batch).keys()
    assert (moved.next_row, moved.row_mask.tolist()) == (batch.next_row, batch.row_mask.tolist())
    tensors = moved["input_ids"], moved["images"][0], moved["images"][1]["mask"]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert batch["input_ids"].device.type == "cpu"
