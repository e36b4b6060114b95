import json

import pytest


@pytest.fixture(scope="module")
def deduplicated(tmp_path_factory, gristmill):
    folder = tmp_path_factory.mktemp("dedup")
    text = " ".join(f"word{n}" for n in range(80))
    records = [{"text": text, "id": 1}, {"text": text + " and more", "id": 2}, {"text": "other", "id": 3}]
    records += [{"text": "other", "id": 4}, {"text": "secret question", "id": 5}]
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "known.jsonl").write_text('{"text": "secret question"}\n')
    command = ["dedup", "data.jsonl", "out", "--against", "known.jsonl", "--count"]
    shown = gristmill(*command, folder=folder).out
    return folder, command, shown


def test_documents_without_their_copies(gristmill, deduplicated):
    folder, command, shown = deduplicated
    assert "near_duplicate" in shown
    lines = [json.loads(line) for line in (folder / "out/train/documents/shard-00000.jsonl").read_text().splitlines()]
    assert [(line["id"], line["duplicate_count"]) for line in lines] == [(2, 2), (3, 2)]
    again = json.loads(gristmill(*command, "--json", folder=folder).out)
    assert again["up_to_date"]
    assert again["deduplicated"][0]["loss"] == {"documents": {"in": 5, "duplicate": 2, "near_duplicate": 1}}
    gristmill("verify", "out", folder=folder)


def test_inspect_shows_clusters(gristmill, deduplicated):
    folder, _, _ = deduplicated
    shown = gristmill("inspect", "out", folder=folder).out
    assert "3 of 2" in shown
    assert "2 like documents" in shown
    assert json.loads(gristmill("inspect", "out", "--json", folder=folder).out)["deduplicated"][0]["rows"] == 3


def test_each_removed_document_beside_its_survivor(gristmill, deduplicated):
    folder, _, _ = deduplicated
    found = [json.loads(gristmill("trace", "out", n, "--removed", "--json", folder=folder).out) for n in range(3)]
    assert [row["reason"] for row in found] == ["near_duplicate", "duplicate", "duplicate"]
    assert found[0]["survivor_text"] == found[0]["text"] + " and more"
    assert found[2]["survivor"]["source"] == "against"
    assert found[2]["survivor_text"] == found[2]["text"] == "secret question"
    assert "word3" in gristmill("trace", "out", 0, "--removed", folder=folder).out
    assert "estimated" not in gristmill("trace", "out", 0, "--removed", folder=folder).out
    assert "0 to 2" in gristmill("trace", "out", 3, "--removed", folder=folder, fails=2).err


def test_an_estimate_is_called_one(gristmill, deduplicated):
    folder, _, _ = deduplicated
    shown = gristmill("dedup", "data.jsonl", "estimated", "--verify", "signature", folder=folder).out
    assert "estimates" in shown
    assert "estimated" in gristmill("trace", "estimated", 0, "--removed", folder=folder).out
    assert "estimated" not in gristmill("trace", "estimated", 1, "--removed", folder=folder).out


def test_wrong_use(gristmill, tmp_path):
    assert "threshold" in gristmill("dedup", "a.jsonl", "out", "--threshold", "2", folder=tmp_path, fails=2).err
    assert "no file" in gristmill("dedup", "a.jsonl", "out", folder=tmp_path, fails=2).err
    shown = gristmill("dedup", "--help").out
    assert "Examples" in shown
    assert "not decontamination" in " ".join(shown.split())
    assert "signature" in gristmill("dedup", "a.jsonl", "out", "--verify", "off", folder=tmp_path, fails=2).err


@pytest.mark.parametrize("place", [0, 4999], ids=["in the sample", "far behind it"])
def test_counts_that_are_there_are_not_written_over(gristmill, tmp_path, place):
    records = [{"text": f"document {n}"} for n in range(5000)]
    records[place]["duplicate_count"] = 7
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for workers in (1, 2):
        shown = gristmill("dedup", "a.jsonl", "out", "--count", "--workers", workers, folder=tmp_path, fails=2).err
        assert "already has the key duplicate_count" in shown
        assert "Traceback" not in shown
    assert not (tmp_path / "out/manifest.json").exists()


def test_other_bands_and_the_field_of_against(gristmill, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "secret question"}\n{"text": "other"}\n')
    (tmp_path / "known.jsonl").write_text('{"question": "secret question"}\n')
    command = ("dedup", "a.jsonl", "out", "--bands", "30", "--rows", "4", "--ngram", "3")
    found = gristmill(*command, "--against", "known.jsonl", "--against-text", "question", "--json", folder=tmp_path)
    assert json.loads(found.out)["deduplicated"][0]["loss"]["documents"]["duplicate"] == 1
    recipe = json.loads((tmp_path / "out/manifest.json").read_text())["recipe"]
    assert recipe["steps"][0]["deduplicate"].items() >= {"bands": 30, "rows": 4, "ngram": 3}.items()
    assert "--against" in gristmill(*command, "--against-text", "question", folder=tmp_path, fails=2).err
    assert "bands" in gristmill("dedup", "a.jsonl", "other", "--bands", "1", folder=tmp_path, fails=2).err


def test_a_limit_stops_with_what_was_found(gristmill, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "the very same"}\n' * 30)
    shown = gristmill("dedup", "a.jsonl", "out", folder=tmp_path, fails=1).err
    assert "29 of 30" in shown
    assert "the very same" in shown
    assert "max_source_loss" in shown
