"""`AccelerateLoader` in a loop with a real `Accelerator`: every row once over a resume, and the last step is taken."""

import runpy
from pathlib import Path

import pytest
import torch

from gristmill.stream import Stream
from gristmill.stream.torch.loader import TorchLoader

pytest.importorskip("accelerate")

from gristmill_testing.accelerate_training import train_with_accelerate as train


@pytest.mark.full
@pytest.mark.parametrize(("batch_size", "accumulate"), [(3, 1), (8, 2), (5, 4)])
def test_a_resume_with_another_batch_reads_every_row_once(packed, oracle, tmp_path, batch_size, accumulate):
    first = train(Stream(packed, seed=7, epochs=2), batch_size=4, accumulate=2, stop_after=6, save=tmp_path)
    assert (first.rows, first.num_updates) == (oracle[:24], 3)
    stream = Stream(packed, seed=7, epochs=2)
    rest = train(stream, batch_size=batch_size, accumulate=accumulate, load=tmp_path)
    assert rest.rows == oracle[24:106]
    steps = [-(-num_rows // batch_size) for num_rows in (29, 53)]
    assert rest.num_updates == sum(-(-number // accumulate) for number in steps)  # the last step of each epoch, too


@pytest.mark.full
def test_batches_left_out_end_an_epoch(packed, oracle):
    stream = Stream(packed, seed=7, epochs=1, drop_last=True)
    run = train(stream, batch_size=10, accumulate=3)
    assert (run.rows, run.num_updates) == (oracle[:50], 2)


@pytest.mark.full
def test_the_example(packed, oracle, tmp_path, monkeypatch):
    (tmp_path / "rows").symlink_to(packed)
    for options in (["--batch-size", "4", "--stop-at", "20"], ["--batch-size", "7"]):
        monkeypatch.setattr("sys.argv", ["train_accelerate.py", str(tmp_path / "rows"), *options])
        runpy.run_path(str(Path(__file__).parents[3] / "examples" / "train_accelerate.py"))
    assert (tmp_path / "trained.txt").read_text().splitlines() == [str(row) for row in oracle[:53]]


def test_a_batch_keeps_its_attributes_on_the_way_to_a_device(packed):
    from accelerate.utils import send_to_device

    stream = Stream(packed, seed=7, epochs=1)
    for batch in TorchLoader(stream, 4):
        sent = send_to_device(batch, torch.device("meta"), non_blocking=True)
        assert type(sent) is type(batch)
        assert {value.device.type for value in sent.values()} == {"meta"}
        assert vars(sent).keys() == vars(batch).keys()
        assert sent.next_row == batch.next_row
        assert sent.row_mask.tolist() == batch.row_mask.tolist()
