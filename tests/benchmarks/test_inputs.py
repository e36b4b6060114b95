"""Inputs are the same bytes each time, and small ones are the beginning of large ones."""

import json

import pytest
from benchmarks.harness.contest import Setting
from benchmarks.inputs import chats, corpora
from benchmarks.inputs.files import tiny_files

SMALL, LARGE = 0.05, 0.1


@pytest.fixture
def settings(tmp_path):
    return Setting(tmp_path / "one"), Setting(tmp_path / "other")


@pytest.mark.parametrize("make", [corpora.plain, corpora.with_copies])
def test_corpora_are_reproducible(make, settings):
    one, other = settings
    small = make(one, SMALL).read_bytes()
    assert make(other, LARGE).read_bytes().startswith(small)
    assert SMALL * corpora.MB <= len(small) < LARGE * corpora.MB


def test_copies_name_their_originals(settings):
    records = [json.loads(line) for line in corpora.with_copies(settings[0], 0.5).read_bytes().splitlines()]
    copies = [(number, record) for number, record in enumerate(records) if "copy_of" in record]
    assert 0 < len(copies) < len(records) / 4
    for number, copy in copies:
        words, original = (set(record["text"].split()) for record in (copy, records[copy["copy_of"]]))
        assert copy["copy_of"] < number
        assert len(words & original) > 0.7 * len(original)


@pytest.mark.parametrize("kind", chats.KINDS)
def test_chats_alternate(kind, settings):
    one, other = settings
    path = chats.chats(one, kind, SMALL)
    assert path.read_bytes() == chats.chats(other, kind, SMALL).read_bytes()
    fewest, most, *_ = chats.KINDS[kind]
    for line in path.read_bytes().splitlines():
        messages = json.loads(line)["messages"]
        assert fewest <= len(messages) / 2 <= most
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)


def test_parts_hold_every_line_once(settings):
    source = corpora.plain(settings[0], SMALL)
    files = sorted(corpora.parts(settings[0], source, 3).glob("*.jsonl"))
    assert sorted(b"".join(file.read_bytes() for file in files).splitlines()) == sorted(
        source.read_bytes().splitlines()
    )


def test_own_text_is_used(settings, tmp_path):
    corpus = tmp_path / "mine.jsonl"
    corpus.write_text(json.dumps({"text": "A sentence of the user that is long enough. And another one of that kind!"}))
    own = corpora.plain(Setting(tmp_path / "own", corpus=corpus), 0.01).read_text()
    assert "sentence of the user" in own


def test_tiny_files(settings):
    assert len(list(tiny_files(settings[0], 30).rglob("*.jsonl"))) == 30
