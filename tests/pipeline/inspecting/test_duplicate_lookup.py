import json

import pytest

from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.duplicate_lookup import find_removed_parts, read_removed_document
from gristmill.shards.dataset import Origin, open_dataset
from gristmill.steps import Deduplicate, Read, Write


def test_by_origin_and_by_number(mill, tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"body": text}) for text in ("one", "two", "one", "three", "two")]
    path.write_text("\n".join(lines))
    recipe = mill.recipe({"web": Read(read=str(path), text="body")}, [Deduplicate(), Write(format="arrow")])
    mill.run(recipe)
    dataset = open_dataset(mill.output)
    first = read_removed_document(dataset, 0)
    assert (first.text, first.survivor_text, first.reason, first.similarity) == ("one", "one", "duplicate", 1.0)
    position = path.read_text().rindex('{"body": "two"}')
    for name in (str(path), "a.jsonl"):
        [removed] = find_removed_parts(dataset, Origin("web", name, position, 0))
        assert removed == {0: read_removed_document(dataset, 1)}
    assert removed[0].survivor.position == path.read_text().index('{"body": "two"}')
    assert find_removed_parts(dataset, Origin("web", str(path), 0, 0)) == [{}]
    assert find_removed_parts(dataset, Origin("other", str(path), position, 0)) == [{}]
    with pytest.raises(UsageError):
        read_removed_document(dataset, 2)
    path.write_text("changed")
    assert read_removed_document(dataset, 0).text is None


def test_what_is_in_against_is_read_as_its_own_step_says(mill, tmp_path):
    for name, field, text in (("a", "question", "one"), ("b", "answer", "two")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({field: text, "text": f"not {text}"}) + "\n")
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "three")))
    steps = [
        Deduplicate(against={"read": str(tmp_path / f"{name}.jsonl"), "text": field})
        for name, field in (("a", "question"), ("b", "answer"))
    ]
    mill.run(mill.recipe({"web": Read(read=str(path))}, [*steps, Write(format="jsonl")]))
    dataset = open_dataset(mill.output)
    assert [read_removed_document(dataset, number).survivor_text for number in range(2)] == ["one", "two"]
