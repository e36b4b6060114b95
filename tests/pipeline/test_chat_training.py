"""What trainers make of our rows: the loss of a packed row is that of its conversations, each on its own."""

import pytest
import torch
from gristmill_testing.chats import chat_steps, chat_tokenizer, write_chats
from torch.nn.functional import cross_entropy

from gristmill.core.recipe import Recipe
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Pack, Read
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchLoader

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The same 30 chats as rows of their own in `alone`, and `packed`; of both the exported tables."""
    folder = tmp_path_factory.mktemp("world")
    data = write_chats(folder / "in/chats.jsonl", 30, max_words=12)
    steps = chat_steps(chat_tokenizer(folder / "tokenizer"))
    for name, last in {"alone": [], "packed": [Pack(row_length=300)]}.items():
        recipe = Recipe(sources={"chats": Read(read=str(data))}, steps=[*steps, *last], output=str(folder / name))
        run_recipe(recipe, RunOptions(backend="serial", progress=False))
        export(folder / name, to="parquet", path=folder / f"tables/{name}", backend="serial", progress=False)
    return folder


@pytest.fixture(scope="module")
def model():
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=400, **size)).eval()


@torch.no_grad()
def total_loss(model, batch):
    """The sum over all trained tokens, as models of transformers count it: labels are shifted by them."""
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
    labels = batch["labels"][:, 1:]
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum")
    return float(loss), int((labels != -100).sum())


def stream_loss(model, folder, batch_size):
    collate = Collate(fields=("input_ids", "labels", "position_ids"))
    loader = TorchLoader(Stream(folder, epochs=1, collate=collate), batch_size=batch_size)
    losses, counts = zip(*(total_loss(model, batch) for batch in loader), strict=True)
    return sum(losses), sum(counts)


def exported_rows(world, name):
    import datasets

    files = [str(path) for path in sorted((world / "tables").glob(f"{name}_train-*.parquet"))]
    return datasets.Dataset.from_parquet(files, cache_dir=str(world / "cache"))


def test_conversations_of_a_row_do_not_see_each_other(world, model):
    trained = sum(shard.trained_tokens for _, _, shard in open_dataset(world / "alone").manifest.shards())
    alone, num_alone = stream_loss(model, world / "alone", batch_size=1)
    assert num_alone == trained
    for batch_size in (1, 4):
        packed, num_packed = stream_loss(model, world / "packed", batch_size)
        assert num_packed == trained
        assert packed == pytest.approx(alone, rel=1e-4)
    one_document = [
        {name: torch.tensor([row[name]]) for name in ("input_ids", "labels", "position_ids")}
        for row in exported_rows(world, "packed")
    ]
    assert sum(total_loss(model, row)[0] for row in one_document) == pytest.approx(alone, rel=1e-4)


def test_trl_takes_exported_rows_as_they_are(world, model, tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is not installed: `pip install trl` to run this")
    rows = exported_rows(world, "packed")
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=3,
        max_steps=2,
        padding_free=True,
        max_length=None,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        shuffle_dataset=False,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(world / "packed/tokenizer")
    trainer = trl.SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    batch = trainer.data_collator([trainer.train_dataset[n] for n in (0, 1, 2)])
    for name in ("input_ids", "labels", "position_ids"):
        assert batch[name][0].tolist() == [value for n in (0, 1, 2) for value in rows[n][name]]
    assert trainer.train().training_loss > 0
