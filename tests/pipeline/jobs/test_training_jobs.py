"""Training a tokenizer from Python: texts and files give the same one, and what is no text is refused."""

import json

import pytest

import gristmill as gm

TEXTS = [f"The mill grinds sack number {n}." for n in range(50)]


def test_texts_and_files_give_the_same_tokenizer(tmp_path):
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    read = gm.steps.Read(read=str(tmp_path / "data.jsonl"))
    summaries = [
        gm.train_tokenizer(texts, tmp_path / name, vocab_size=280)
        for name, texts in (("files", read), ("texts", iter(TEXTS)))
    ]
    assert [summary.num_documents for summary in summaries] == [50, 50]
    assert (tmp_path / "files/tokenizer.json").read_bytes() == (tmp_path / "texts/tokenizer.json").read_bytes()


@pytest.mark.parametrize(("texts", "message"), [("one text", "not one text"), ([], "no documents to train on")])
def test_what_is_no_list_of_texts_is_refused(texts, message, tmp_path):
    with pytest.raises(gm.errors.UsageError, match=message):
        gm.train_tokenizer(texts, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_an_existing_tokenizer_is_kept(tmp_path):
    gm.train_tokenizer(TEXTS, tmp_path, vocab_size=280)
    with pytest.raises(gm.errors.UsageError, match="overwrite"):
        gm.train_tokenizer(TEXTS, tmp_path, vocab_size=280)
    gm.train_tokenizer(TEXTS, tmp_path, vocab_size=290, overwrite=True)
