"""`StreamTrainer`: a real Trainer and a real tiny model, stopped and resumed with other batches and phases."""

import json

import pytest

from gristmill.core.errors import UsageError
from gristmill.stream import Stream

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from gristmill_testing.hf_training import train_on_stream as train

PHASES = [(0, {"web": 0.5, "code": 0.5}), (24, {"web": 0.9, "code": 0.1})]


def test_a_resume_with_another_batch_reads_every_row_once(packed, oracle, tmp_path):
    """Two epochs of 53 rows; saved in the first, after 2 steps of 8 rows, and stopped one step later."""
    rows, _ = train(tmp_path, Stream(packed, seed=7, epochs=2), batch_size=8, saves=2, stop_after=3, num_train_epochs=2)
    assert rows == oracle[:24]
    rest, trainer = train(
        tmp_path,
        Stream(packed, seed=7, epochs=2),
        batch_size=3,
        resume=str(tmp_path / "checkpoint-2"),
        accumulate=2,
        num_train_epochs=2,
    )
    assert rest == oracle[16:106]
    # 37 rows are 13 batches, 53 rows are 18; the last step of an epoch accumulates what is left.
    assert trainer.state.global_step == trainer.state.max_steps == 2 + 7 + 9
    assert trainer.state.epoch == 2.0


def test_a_checkpoint_after_an_epoch_begins_the_next(packed, oracle, tmp_path):
    stream = Stream(packed, seed=7, epochs=3)
    rows, trainer = train(tmp_path, stream, batch_size=20, num_train_epochs=3, save_strategy="epoch", stop_after=6)
    assert (rows, trainer.state.global_step, trainer.state.epoch) == (oracle[:106], 6, 2.0)
    rest, trainer = train(
        tmp_path, Stream(packed, seed=7, epochs=3), batch_size=53, num_train_epochs=3, resume=True, saves=1
    )
    assert (rest, trainer.state.global_step, trainer.state.epoch) == (oracle[106:159], 7, 3.0)
    again, _ = train(tmp_path, Stream(packed, seed=7, epochs=3), batch_size=8, num_train_epochs=3, resume=True)
    assert again == []


def test_phases_are_kept(packed, tmp_path):
    """An endless stream whose weights change at row 24, between two runs of other batch sizes."""
    first, _ = train(tmp_path, Stream(packed, mixture=PHASES), batch_size=5, max_steps=4, saves=4)
    resumed, _ = train(tmp_path, Stream(packed, mixture=PHASES), batch_size=2, max_steps=14, resume=True)
    assert [*first, *resumed] == Stream(packed, mixture=PHASES).rows(0, 40)["input_ids"].tolist()
    changed = Stream(packed, mixture=[(0, {"web": 0.4, "code": 0.6})])
    with pytest.raises(UsageError, match="earlier rows were drawn with other weights"):
        train(tmp_path, changed, batch_size=2, max_steps=20, resume=True)


@pytest.mark.parametrize(
    ("stream", "options", "message"),
    [
        ({"epochs": 1}, {}, "num_train_epochs is 3, but the stream ends after 1"),
        ({}, {}, "endless"),
        ({"rows": 20}, {"max_steps": 6}, "ends after 5 steps"),
        ({"epochs": 1}, {"dataloader_drop_last": True}, "drop_last"),
    ],
)
def test_a_training_that_cannot_end_as_it_should_is_refused(packed, tmp_path, stream, options, message):
    with pytest.raises(UsageError, match=message):
        train(tmp_path, Stream(packed, **stream), batch_size=4, **options)


def test_a_checkpoint_of_a_plain_trainer_is_refused(packed, tmp_path):
    train(tmp_path, Stream(packed), batch_size=4, max_steps=1, saves=1)
    path = tmp_path / "checkpoint-1" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["StreamPosition"]
    path.write_text(json.dumps(state))
    with pytest.raises(UsageError, match="not saved by a StreamTrainer"):
        train(tmp_path, Stream(packed), batch_size=4, max_steps=2, resume=True)
    path.unlink()
    with pytest.raises(UsageError, match=r"no trainer_state\.json"):
        train(tmp_path, Stream(packed), batch_size=4, max_steps=2, resume=str(path.parent))
