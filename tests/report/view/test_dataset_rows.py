"""The rows of a dataset in the viewer: by origin, far inside of documents, and next to damage."""

import json
import shutil

import pytest

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.page_requests import Requests
from gristmill.report.view.rows import count_rows
from gristmill.shards.dataset import open_dataset


def test_a_document_is_found_by_its_origin(mixed_rows, web):
    for folder in (mixed_rows, web):
        rows = open_collections([folder])["out"]
        for number in (0, 5, len(rows.dataset) - 1):
            described = rows.describe_row(number)
            for place in [entry["origin"] for entry in described.get("documents", ())] or [described["origin"]]:
                found = rows.describe_row(rows.find_document(place))
                assert place in [entry["origin"] for entry in found.get("documents", ())] or found["origin"] == place
        for place in ("web:nothing.jsonl@0", "nonsense", "web:a@99999999999999999999999"):
            with pytest.raises(UsageError):
                rows.find_document(place)


def test_tokens_far_inside_a_long_document(tmp_path, rows):
    chain = [steps.Tokenize(tokenizer=str(rows.parent / "tokenizer")), steps.Write(format="arrow")]
    for name, word in (("a", "one"), ("b", "two")):
        (tmp_path / "in.jsonl").write_text(json.dumps({"text": "7 " * 20_000 + word}) + "\n")
        read = steps.Read(read=str(tmp_path / "in.jsonl"))
        recipe = gm.Recipe(sources={"web": read}, steps=chain, output=str(tmp_path / name))
        gm.run(recipe, backend="serial", progress=False)
    sides = open_collections([tmp_path / "a", tmp_path / "b"])["differences"].describe_row(0)["sides"]
    assert ["".join(token[1] for token in side["tokens"] if token[-1]) for side in sides] == [" one", " two"]


def test_damage_in_one_file_hides_no_other(web, tmp_path):
    copy = shutil.copytree(web, tmp_path / "out")
    [quarantined] = (copy / "quarantine").glob("*.jsonl*")
    quarantined.write_bytes(quarantined.read_bytes()[:-20] + b"x" * 20)
    collections = open_collections([copy])
    assert count_rows(collections["out"]) == len(open_dataset(web))
    damaged = Requests(collections).read_rows({"name": ["out · quarantined"]})
    assert quarantined.name in damaged["note"]
    quarantined.unlink()
    assert quarantined.name in open_collections([copy])["out · quarantined"].note
    assert open_collections([copy])["out · dropped"].note == ""
