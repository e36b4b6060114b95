"""From two files of examples to a recipe that keeps good documents."""

import json
import random

import pytest


@pytest.fixture
def examples(tmp_path):
    rng = random.Random(1)
    for name in ("good", "bad", "mixed"):
        lines = []
        for number in range(300 if name != "mixed" else 60):
            own = name if name != "mixed" else ("good" if number % 3 else "bad")
            words = [f"c{rng.randrange(100)}" for _ in range(20)] + [f"{own}{rng.randrange(30)}" for _ in range(5)]
            lines.append({"text": " ".join(words), "own": own})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_train_and_use(gristmill, examples):
    said = json.loads(
        gristmill("classifier", "train", "good.jsonl", "bad.jsonl", "--out", "q.model", "--json", folder=examples).out
    )
    assert said["accuracy"] > 0.9
    (examples / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: mixed.jsonl}}\n"
        "steps:\n  - quality_model: {model: q.model, min_score: 0.5, buckets: [0.7]}\n  - write: {format: jsonl}\n"
    )
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=examples)
    lines = (examples / "out/train/web/shard-00000.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 40
    assert {record["own"] for record in records} == {"good"}
    assert all(record["quality_bucket"] == (record["quality"] >= 0.7) for record in records)


def test_nothing_is_overwritten_and_a_missing_model_is_named(gristmill, examples):
    (examples / "q.model").write_text("mine")
    said = gristmill("classifier", "train", "good.jsonl", "bad.jsonl", "--out", "q.model", folder=examples, fails=2).err
    assert "already exists" in said
    (examples / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: mixed.jsonl}}\nsteps: [quality_model: {model: none.model}]\n"
    )
    assert "none.model" in gristmill("plan", "recipe.yaml", folder=examples, fails=2).err
