import json

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
