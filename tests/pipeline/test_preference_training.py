"""What TRL makes of our preferences: the same batches and the same loss as from its own tokenization of the records."""

import json
import random

import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import SPECIALS
from gristmill_testing.small_tokenizers import trained

from gristmill.core.recipe import Recipe
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps import Read, Render, Tokenize
from gristmill.stream import Stream

pytestmark = pytest.mark.full  # tests/steps/tokenize and tests/stream prove the ids and batches against slow twins
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl", reason="TRL is not installed: `pip install trl` to run this")
torch = pytest.importorskip("torch")

WORDS = ["mill", "grist", "flour", "stone", "größe", "粉"]
BATCH = 4


def make_records(form, count):
    rng = random.Random(2)

    def say(role):
        return {"role": role, "content": " ".join(rng.choices(WORDS, k=rng.randrange(2, 12)))}

    records = []
    for number in range(count):
        prompt = [say(role) for role in ("user", "assistant", "user")[: rng.choice([1, 3])]]
        if form == "pairs":
            records.append({"prompt": prompt, "chosen": [say("assistant")], "rejected": [say("assistant")]})
        else:
            records.append({"prompt": prompt, "completion": [say("assistant")], "label": number % 2 == 0})
    return records


@pytest.fixture(scope="module", params=["pairs", "labels"])
def world(request, tmp_path_factory):
    """The form, its records, and the folder of the dataset and the exported table."""
    folder = tmp_path_factory.mktemp(request.param)
    config = {"chat_template": CHATML, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    trained(folder / "tokenizer", specials=SPECIALS, **config)
    records = make_records(request.param, 8)
    (folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    steps = [Render(preferences=request.param), Tokenize(tokenizer=str(folder / "tokenizer"), engine="tokenizers")]
    recipe = Recipe(sources={"made": Read(read=str(folder / "in.jsonl"))}, steps=steps, output=str(folder / "out"))
    run_recipe(recipe, RunOptions(backend="serial", progress=False))
    export(folder / "out", to="parquet", path=folder / "table", backend="serial", progress=False)
    return request.param, records, folder


def make_model():
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=400, **size))


def make_trainer(form, folder, records, out):
    import datasets

    config, kind = (trl.DPOConfig, trl.DPOTrainer) if form == "pairs" else (trl.KTOConfig, trl.KTOTrainer)
    arguments = config(
        output_dir=str(out),
        per_device_train_batch_size=BATCH,
        max_length=None,
        max_steps=2,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        **({"train_sampling_strategy": "sequential"} if form == "labels" else {}),
    )
    torch.manual_seed(0)
    models = {"model": make_model(), "ref_model": make_model()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    return kind(args=arguments, train_dataset=datasets.Dataset.from_list(records), processing_class=tokenizer, **models)


def test_a_step_has_the_loss_of_trls_own_tokenization(world, tmp_path):
    import datasets

    form, records, folder = world
    trainer = make_trainer(form, folder, records, tmp_path / "run")
    theirs = trainer.data_collator([trainer.train_dataset[row] for row in range(BATCH)])
    streamed = Stream(folder / "out", shuffle=False, epochs=1).batch(0, BATCH)
    assert set(streamed) == set(theirs)
    for name, values in theirs.items():
        assert torch.equal(torch.from_numpy(streamed[name]), values), name
    files = [str(path) for path in sorted(folder.glob("table_train-*.parquet"))]
    table = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    rows = [table[row] for row in range(BATCH)]
    if form == "labels":  # what `KTOTrainer` adds to its own rows, batch by batch
        completions = [row["completion_ids"] for row in rows]
        rows = [
            {**row, "KL_completion_ids": other}
            for row, other in zip(rows, [completions[-1], *completions[:-1]], strict=True)
        ]
    exported = trainer.data_collator(rows)
    trainer.model.eval()
    with torch.no_grad():
        losses = [float(trainer.compute_loss(trainer.model, dict(batch))) for batch in (theirs, exported)]
        tensors = {name: torch.from_numpy(values) for name, values in streamed.items()}
        losses.append(float(trainer.compute_loss(trainer.model, tensors)))
    assert losses[0] > 0
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-5)


def test_a_trainer_takes_the_exported_rows(world, tmp_path):
    """`train_dataset` is a public attribute: a trainer made with one raw record trains on rows that are tokenized."""
    import datasets

    form, records, folder = world
    trainer = make_trainer(form, folder, records[:BATCH], tmp_path / "run")
    files = [str(path) for path in sorted(folder.glob("table_train-*.parquet"))]
    table = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    if form == "labels":
        table = table.map(
            lambda rows: {"KL_completion_ids": [rows["completion_ids"][-1], *rows["completion_ids"][:-1]]},
            batched=True,
            batch_size=BATCH,
        )
    trainer.train_dataset = table
    assert trainer.train().training_loss > 0
