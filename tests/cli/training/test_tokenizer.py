import json
import random
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"content": f"Document {n} tells of mills, corn and {n * n} stones."}) for n in range(300)]
    (folder / "a.jsonl").write_text("\n".join([*lines, "not json"]))
    return folder


@pytest.fixture(scope="module")
def trained(corpus, gristmill):
    return gristmill(
        "tokenizer", "train", "mine", "a.jsonl", "--text", "content", "--vocab-size", 400, "--special", "<end>",
        "--special", "<pad>", folder=corpus,
    )  # fmt: skip


def test_train_says_what_it_did(trained, corpus):
    assert "300 documents" in trained.out
    assert "1 record without usable text" in trained.out
    assert {path.name for path in (corpus / "mine").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}


def test_same_again(trained, corpus, gristmill):
    common = ["--text", "content", "--vocab-size", 400, "--special", "<end>", "--special", "<pad>"]
    gristmill("tokenizer", "train", "again", "a.jsonl", *common, folder=corpus)
    assert (corpus / "again" / "tokenizer.json").read_bytes() == (corpus / "mine" / "tokenizer.json").read_bytes()
    refused = gristmill("tokenizer", "train", "again", "a.jsonl", *common, folder=corpus, fails=2)
    assert "--overwrite" in refused.err
    gristmill("tokenizer", "train", "again", "a.jsonl", *common, "--overwrite", folder=corpus)


def test_a_part_is_taken_by_hash(trained, corpus, gristmill):
    common = ["a.jsonl", "--text", "content", "--vocab-size", 300, "--max-bytes", "10kB", "--json"]
    first, second = (
        json.loads(gristmill("tokenizer", "train", name, *common, folder=corpus).out) for name in ("part1", "part2")
    )
    assert first["num_documents"] + first["num_left_out"] == 300
    assert 0 < first["num_documents"] < 300
    assert first["num_bytes"] < 15_000
    assert {**first, "folder": ""} == {**second, "folder": ""}
    assert (corpus / "part1" / "tokenizer.json").read_bytes() == (corpus / "part2" / "tokenizer.json").read_bytes()


def test_check(trained, corpus, gristmill):
    done = gristmill("tokenizer", "check", "mine", "a.jsonl", "--text", "content", folder=corpus)
    for word in ("400 tokens", "uint16", "<end> <pad>", "fastokens", "MB/s"):
        assert word in done.out
    report = json.loads(gristmill("tokenizer", "check", "mine", "--json", folder=corpus).out)
    assert (report["vocab_size"], report["eos_id"], report["engine"]) == (400, 0, "fastokens")
    assert report["num_round_trips"] == report["num_adversarial"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["check", "./gone"], "there is no tokenizer"),
        (["check", "a.jsonl"], "cannot be read as a tokenizer"),
        (["check", "mine", "gone.jsonl"], "gone.jsonl"),
        (["check", "mine", "--format", "jsonl"], "--format"),
        (["train", "new", "gone.jsonl"], "gone.jsonl"),
        (["train", "new", "a.jsonl"], "text"),
        (["train", "new", "a.jsonl", "--max-bytes", "much"], "not a size"),
        (["train", "new", "a.jsonl", "--text", "content", "--vocab-size", "10"], "vocab-size"),
    ],
)
def test_mistakes(trained, corpus, gristmill, arguments, word):
    assert word in gristmill("tokenizer", *arguments, folder=corpus, fails=2).err
    assert not (corpus / "new").exists()


def test_nothing_to_train_on(tmp_path, gristmill):
    (tmp_path / "empty.jsonl").touch()
    assert "no documents" in gristmill("tokenizer", "train", "new", "empty.jsonl", folder=tmp_path, fails=2).err


def test_folders_with_spaces_in_their_names(tmp_path, gristmill):
    for name in ("my corpus", "other corpus"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"text": "a document of some words"}\n')
    trained = gristmill("tokenizer", "train", "mine", "my corpus", "other corpus", "--vocab-size", 260, folder=tmp_path)
    assert "2 documents" in trained.out


MODELS = Path(__file__).parents[2] / "text/classifiers/models"


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


def test_too_few_examples_are_named(gristmill, examples):
    (examples / "one.jsonl").write_bytes(b'{"text": "one doc"}\n')  # the hash of this text holds it out
    (examples / "damaged.jsonl").write_bytes(b"\xff\xfe\n")
    for name, words in [("one", "one.jsonl: 1 texts can be read"), ("damaged", "not 1 records: ")]:
        train = ("classifier", "train", "good.jsonl", f"{name}.jsonl", "--out", "q.model")
        assert words in gristmill(*train, folder=examples, fails=2).err
    assert not (examples / "q.model").exists()


def test_nothing_is_overwritten_and_a_missing_model_is_named(gristmill, examples):
    (examples / "q.model").write_text("mine")
    said = gristmill("classifier", "train", "good.jsonl", "bad.jsonl", "--out", "q.model", folder=examples, fails=2).err
    assert "already exists" in said
    (examples / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: mixed.jsonl}}\nsteps: [quality_model: {model: none.model}]\n"
    )
    assert "none.model" in gristmill("plan", "recipe.yaml", folder=examples, fails=2).err


def test_few_and_damaged_examples_are_told(gristmill, examples):
    (examples / "few.jsonl").write_text('{"text": "one good document"}\n{"text": null}\n{broken\n')
    said = gristmill("classifier", "train", "few.jsonl", "bad.jsonl", "--out", "q.model", folder=examples).out
    assert "2 records are damaged or have no text" in said
    assert "classified correctly" not in said
    same = gristmill("classifier", "train", "bad.jsonl", "bad.jsonl", "--out", "same.model", folder=examples).out
    assert "little better than chance" in same


def run_with_model(gristmill, folder, step):
    """Run a recipe with one step, and return the documents that are kept with their scores."""
    (folder / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: mixed.jsonl}}\n"
        f"steps:\n  - quality_model: {step}\n  - write: {{format: jsonl}}\n"
    )
    gristmill("run", "recipe.yaml", "--workers", "2", "--overwrite", folder=folder)
    [shard] = (folder / "out/train/web").glob("*.jsonl")
    return [json.loads(line) for line in shard.read_text().splitlines()]


def test_models_from_elsewhere(gristmill, examples):
    fast = run_with_model(gristmill, examples, f"{{model: {MODELS}/softmax.bin, label: hq, min_score: 0.4}}")
    assert {record["own"] for record in fast} == {"good"}
    assert len(fast) > 20
    pytest.importorskip("onnxruntime")
    step = f"{{model: {MODELS}/scikit.onnx, min_score: 0.5, buckets: [0.6]}}"
    scored = run_with_model(gristmill, examples, step)
    assert sum(record["own"] == "good" for record in scored) > 35
    assert sum(record["own"] == "bad" for record in scored) < 5
    assert all(record["quality_bucket"] == (record["quality"] >= 0.6) for record in scored)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("{model: softmax.bin}", "set label"),
        ("{model: softmax.bin, label: hq, tokenizer: t}", "tokenizer does not apply"),
        ("{model: softmax.bin, label: hq, min_score: 3}", "from 0 to 1"),
        ("{model: cut.bin, label: hq}", "ends too early"),
        ("{model: pickled.bin}", "pickle"),
    ],
)
def test_models_that_cannot_be_used_are_named_by_the_plan(gristmill, examples, step, said):
    (examples / "softmax.bin").write_bytes((MODELS / "softmax.bin").read_bytes())
    (examples / "cut.bin").write_bytes((MODELS / "softmax.bin").read_bytes()[:-9])
    (examples / "pickled.bin").write_bytes(b"\x80\x04K\x01.")
    (examples / "recipe.yaml").write_text(
        f"output: out\nsources: {{web: {{read: mixed.jsonl}}}}\nsteps: [quality_model: {step}]\n"
    )
    error = gristmill("plan", "recipe.yaml", folder=examples, fails=2).err
    assert said in error
    assert "Traceback" not in error
