"""`StreamTrainer`: a real Trainer and a real tiny model, stopped and resumed with other batches and phases."""

import itertools
import json

import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import tokenizers
import transformers
from gristmill_testing.hf_training import make_llama
from gristmill_testing.hf_training import train_on_stream as train

from gristmill.stream.trainers.transformers import StreamTrainerMixin

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


@pytest.mark.full
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


@pytest.mark.full
def test_phases_are_kept(packed, tmp_path):
    """An endless stream whose weights change at row 24, between two runs of other batch sizes."""
    first, _ = train(tmp_path, Stream(packed, mixture=PHASES), batch_size=5, max_steps=4, saves=4)
    resumed, _ = train(tmp_path, Stream(packed, mixture=PHASES), batch_size=2, max_steps=14, resume=True)
    assert [*first, *resumed] == Stream(packed, mixture=PHASES).rows(0, 40)["input_ids"].tolist()
    changed = Stream(packed, mixture=[(0, {"web": 0.4, "code": 0.6})])
    with pytest.raises(UsageError, match="earlier rows were drawn with other weights"):
        train(tmp_path, changed, batch_size=2, max_steps=20, resume=True)


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_a_trainer_that_insists_on_a_dataset_needs_none(packed, oracle, tmp_path):
    trl = pytest.importorskip("trl")

    class StreamSFTTrainer(StreamTrainerMixin, trl.SFTTrainer):
        pass

    model, rows = make_llama(vocab_size=60_000), []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.extend(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    collate = Collate(fields=("input_ids", "labels", "position_ids"))
    stream = Stream(packed, seed=7, epochs=1, rows_per_epoch=52, collate=collate)
    options = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "save_strategy": "no", "report_to": []}
    arguments = trl.SFTConfig(str(tmp_path), use_cpu=True, bf16=False, disable_tqdm=True, **options)
    vocabulary = tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, "<pad>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(vocabulary), pad_token="<pad>", eos_token="<eos>"
    )
    trainer = StreamSFTTrainer(model, arguments, stream=stream, processing_class=tokenizer)
    trainer.train()
    assert rows == oracle[:52]
    assert trainer.state.global_step == 13


@pytest.mark.full
def test_batches_by_tokens_train_every_row_and_resume(tmp_path):
    rng = np.random.default_rng(3)
    rows = [[number + 1, *rng.integers(300, 400, size).tolist()] for number, size in enumerate(rng.integers(1, 60, 90))]
    write_tokens(tmp_path / "data", {("train", "a"): [rows]})

    def make():
        return Stream(tmp_path / "data", seed=3, epochs=2, batch_tokens={"tokens": 256, "window": 40})

    expected = [row for batch in make().batches() for row in batch["input_ids"].tolist()]
    first, _ = train(tmp_path, make(), batch_size=8, saves=3, stop_after=3, num_train_epochs=2)
    rest, trainer = train(tmp_path, make(), batch_size=8, resume=True, num_train_epochs=2)
    assert [*first, *rest] == expected
    assert trainer.state.global_step == trainer.state.max_steps == make().num_steps()
    assert trainer.state.epoch == 2.0


@pytest.mark.full
def test_batches_keep_their_attributes(packed, tmp_path):
    seen = []

    class NotingTrainer(StreamTrainerMixin, transformers.Trainer):
        def compute_loss(self, model, inputs, **options):
            seen.append((inputs.next_row, inputs.tokens.tolist(), inputs.row_mask.tolist()))
            return super().compute_loss(model, inputs, **options)

    options = {"per_device_train_batch_size": 8, "max_steps": 3, "save_strategy": "no", "report_to": []}
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, **options)
    NotingTrainer(make_llama(), arguments, stream=Stream(packed, seed=7, epochs=1)).train()
    batches = itertools.islice(Stream(packed, seed=7, epochs=1).batches(8), 3)
    assert seen == [(batch.next_row, batch.tokens.tolist(), batch.row_mask.tolist()) for batch in batches]


@pytest.mark.full
def test_a_batch_that_lost_its_attributes_says_so(packed):
    [batch] = itertools.islice(Stream(packed, seed=7, epochs=1).batches(8), 1)
    rebuilt = type(batch)(dict(batch))
    for name in ("next_row", "tokens", "row_mask"):
        with pytest.raises(AttributeError, match="use StreamTrainer"):
            getattr(rebuilt, name)
    assert not hasattr(batch, "shape")
    assert rebuilt.num_replaced == 0


@pytest.mark.full
@pytest.mark.parametrize("field", ["cu_seqlens", "document_ids"])
def test_fields_that_models_ignore_are_named(packed, tmp_path, field):
    fields = ("input_ids", "labels", "position_ids", field)
    with pytest.warns(UserWarning, match=f"ignore {field}"):
        train(tmp_path, Stream(packed, epochs=1, collate=Collate(fields=fields)), batch_size=8, max_steps=1)
    flat = Stream(packed, epochs=1, collate=Collate(fields=fields, flatten=True))
    train(tmp_path, flat, batch_size=8, max_steps=1)
