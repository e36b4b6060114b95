"""`text: payload.body`: a step that edits the text edits it where it stands in the record, and nothing else."""

import json

import pyarrow.compute as pc
import pytest

from gristmill.core.errors import UsageError
from gristmill.steps import Map, MapBatches, Read, Rename, Shuffle, Write

LINES = [
    {"id": 1.50, "payload": {"lang": "en", "body": f"text {n}"}, "text": "not the text", "n": n} for n in range(20)
]


def edit(record):
    return {**record, "payload": {**record["payload"], "body": record["payload"]["body"].upper()}}


def edit_batch(batch):
    return batch.set_column(batch.schema.get_field_index("text"), "text", pc.utf8_upper(batch["text"]))


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return {"web": Read(read=f"{tmp_path}/a.jsonl", text="payload.body")}


def lines_of(mill):
    found = [line for path in sorted(mill.output.rglob("train/**/*.jsonl")) for line in path.read_text().splitlines()]
    return sorted(map(json.loads, found), key=lambda record: record["n"])


@pytest.mark.parametrize("step", [Map(call=edit), MapBatches(call=edit_batch)], ids=["map", "map_batches"])
@pytest.mark.parametrize("before", [[], [Shuffle()]], ids=["at once", "after a barrier"])
def test_the_record_is_written_with_the_edited_body_in_place(mill, source, before, step):
    mill.run(mill.recipe(source, [*before, step, Write(format="jsonl")]))
    assert lines_of(mill) == [
        {**line, "payload": {"lang": "en", "body": line["payload"]["body"].upper()}} for line in LINES
    ]


def test_the_text_column_follows_the_edit(mill, source):
    records = list(mill.run(mill.recipe(source, [Map(call=edit), Write(format="arrow")])).dataset())
    assert [record["text"] for record in records] == [f"TEXT {n}" for n in range(20)]


def test_no_trace_of_the_path_in_what_is_written(mill, source):
    dataset = mill.run(mill.recipe(source, [Map(call=edit), Write(format="arrow")])).dataset()
    assert not any(b"path" in (field.metadata or {}) for field in dataset.schema)


def test_a_text_inside_another_value_cannot_be_renamed(mill, source):
    with pytest.raises(UsageError, match=r"payload\.body"):
        mill.run(mill.recipe(source, [Rename(columns={"text": "body"}), Write(format="jsonl")]))


def test_a_text_with_another_name_can(mill, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "a", "n": 1}\n')
    source = {"web": Read(read=f"{tmp_path}/a.jsonl", text="content")}
    mill.run(mill.recipe(source, [Rename(columns={"text": "body"}), Write(format="jsonl")]))
    assert lines_of(mill) == [{"body": "a", "n": 1}]
