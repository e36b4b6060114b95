import json
import shutil

from gristmill_testing.chats import answers, chat_steps, chat_tokenizer, write_chats

import gristmill as gm
from gristmill import steps


def test_columns_counts_books_and_records_are_shown(gristmill, dataset):
    out = gristmill("inspect", dataset, "-n", 2).out
    for words in ("37 documents", "large_string", "validation", "too_short", "record 1"):
        assert words in out
    assert "record 2" not in out


def test_json_has_all_of_it(gristmill, dataset):
    found = json.loads(gristmill("inspect", dataset, "-n", 1000, "--json").out)
    assert found["num_rows"] == len(found["records"]) == sum(row["rows"] for row in found["counts"]) == 37
    assert found["quarantine"] == {"web": {"invalid_json": 1, "missing_text": 1}}


def test_one_split(gristmill, dataset):
    found = json.loads(gristmill("inspect", dataset, "-n", 1000, "--split", "validation", "--json").out)
    assert [row["split"] for row in found["counts"]] == ["validation"]
    assert 0 < len(found["records"]) == found["num_rows"] < 37
    assert "validation" in gristmill("inspect", dataset, "--split", "validaton", fails=2).err


def test_quarantine_shows_what_was_set_aside_and_why(gristmill, dataset):
    out = gristmill("inspect", dataset, "--quarantine").out
    assert "not json [bold]" in out
    assert "missing_text" in out
    assert "nothing was quarantined" not in gristmill("inspect", dataset, "--quarantine", "-n", 0).out


def test_text_cannot_steer_the_terminal(gristmill, project):
    (project / "data.jsonl").write_text('{"text": "evil \\u001b[2J \\u009b2J text"}\n')
    gristmill("run", project / "recipe.yaml", "--backend", "serial", "--set", "steps.0.length.min_chars=1")
    out = gristmill("inspect", project / "out").out
    assert "evil" in out
    assert not {"\x1b", "\x9b"} & set(out)


def test_folder_that_is_no_dataset(gristmill, tmp_path):
    assert "manifest.json" in gristmill("inspect", tmp_path, fails=2).err


def test_a_folder_inside_a_dataset_names_the_dataset(gristmill, dataset):
    assert f"part of the dataset in {dataset}" in gristmill("inspect", dataset / "train", fails=2).err


def test_chats_show_what_is_trained(gristmill, tmp_path):
    data = write_chats(tmp_path / "in/chats.jsonl", 9)
    recipe = gm.Recipe(
        sources={"chats": steps.Read(read=str(data))},
        steps=[*chat_steps(chat_tokenizer(tmp_path / "tokenizer")), steps.Pack(row_length=600)],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    out = gristmill("inspect", tmp_path / "out").out
    assert "rows of chats" in out
    texts = [json.loads(line)["text"] for line in data.read_text().splitlines()]
    shown = [answer for text in texts for answer in answers(text) if f"⟦{answer}⟧" in out]
    assert shown
    assert "⟦<|user|>" not in out
    found = json.loads(gristmill("inspect", tmp_path / "out", "--json").out)
    assert 0 < found["trained_tokens"] < found["tokens"]
    assert f"{found['trained_tokens'] / found['tokens']:.2%}" in out


def test_rows_of_tokens_are_shown_as_text(gristmill, tmp_path):
    texts = ["first document of all", "second document", "third"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = chat_tokenizer(tmp_path / "tokenizer")
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "a.jsonl"))},
        steps=[steps.Tokenize(tokenizer=str(tokenizer)), steps.Pack(row_length=200)],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    out = gristmill("inspect", tmp_path / "out").out
    assert all(text in out for text in texts)
    assert "input_ids: " not in out
    assert "input_ids: [" in gristmill("inspect", tmp_path / "out", "--ids").out
    [record] = json.loads(gristmill("inspect", tmp_path / "out", "--json").out)["records"]
    assert [text in document for text, document in zip(sorted(texts), sorted(record["documents"]), strict=True)]
    assert "input_ids" not in record
    [record] = json.loads(gristmill("inspect", tmp_path / "out", "--json", "--ids").out)["records"]
    assert len(record["input_ids"]) == 200
    assert sum(record["lengths"]) <= 200


def test_details_have_every_count(gristmill, dataset):
    manifest = json.loads((dataset / "manifest.json").read_text())
    out = gristmill("inspect", dataset, "--details").out
    for account in manifest["books"]["web"]:
        for reason in (*account["dropped"], *account["quarantined"]):
            assert reason in out


def test_a_whole_dataset_is_as_written(gristmill, dataset):
    assert "37 records" in gristmill("verify", dataset).out


def test_a_damaged_shard_is_named(gristmill, dataset, tmp_path):
    copy = shutil.copytree(dataset, tmp_path / "copy")
    shard = next((copy / "train").rglob("shard-*"))
    shard.write_bytes(shard.read_bytes().replace(b"document 1", b"dokument 1"))
    assert shard.name in gristmill("verify", copy, fails=1).out
    found = json.loads(gristmill("verify", copy, "--json", fails=1).out)
    assert found["ok"] is False
    assert [problem["path"] for problem in found["problems"]] == [shard.relative_to(copy).as_posix()]


def test_no_dataset_is_wrong_use(gristmill, tmp_path):
    gristmill("verify", tmp_path, fails=2)
