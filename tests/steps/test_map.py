import json

import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, RECORD_TYPE
from gristmill.core.sample_batches import documents, texts
from gristmill.steps import Map


def json_batch(records, path="text"):
    batch = documents(["?"] * len(records))
    schema = batch.schema.set(1, batch.schema.field(1).with_metadata({"path": path}))
    batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch.append_column(RECORD, pa.array([json.dumps(record).encode() for record in records], RECORD_TYPE))


def test_json_record_and_text_change_together():
    def shorten(record):
        record["payload"]["body"] = record["payload"]["body"][:2]
        record["new"] = {"any": ["thing"]}
        return record

    given = [{"id": 12345678901234567890123, "payload": {"body": "hello", "lang": "en"}}]
    applied = Map(call=shorten).apply(json_batch(given, "payload.body"), seed=0)
    assert texts(applied.batch) == ["he"]
    assert json.loads(applied.batch.column(RECORD)[0].as_py()) == {
        "id": 12345678901234567890123,
        "payload": {"body": "he", "lang": "en"},
        "new": {"any": ["thing"]},
    }


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "not_a_record"),
        (["text"], "not_a_record"),
        ({}, "missing_text"),
        ({"text": None}, "missing_text"),
        ({"text": 5}, "text_not_a_string"),
        ({"text": "\ud800"}, "lone_surrogate"),
        ({"text": "ok", "x": "\ud800"}, "lone_surrogate"),
        ({"text": "ok", "x": object()}, "not_json"),
    ],
)
def test_what_cannot_be_kept_is_set_aside_alone(result, reason):
    applied = Map(call=lambda record: result if record["text"] == "b" else record).apply(
        json_batch([{"text": "a"}, {"text": "b"}, {"text": "c"}]), seed=0
    )
    assert texts(applied.batch) == ["a", "c"]
    assert [(bad.position, bad.reason) for bad in applied.quarantined] == [(1, reason)]


def test_columns_are_typed_and_new_ones_declared():
    def score(record):
        return {**record, "score": {"a": 1, "b": "high", "c": None}[record["text"]]}

    batch = documents(list("abc"), url=["u", "v", "w"])
    applied = Map(call=score, columns={"score": "int32"}).apply(batch, seed=0)
    assert applied.batch.schema.field("score").type == pa.int32()
    assert applied.batch.column("score").to_pylist() == [1, None]
    assert applied.batch.column("url").to_pylist() == ["u", "w"]
    assert [bad.reason for bad in applied.quarantined] == ["column_type"]

    applied = Map(call=score).apply(batch, seed=0)
    assert [bad.reason for bad in applied.quarantined] == ["undeclared_column"] * 3


def test_broken_json_that_the_reader_did_not_see_is_set_aside():
    batch = documents(["a"]).append_column(RECORD, pa.array([b'{"text": "a", "x": "\xff"}'], RECORD_TYPE))
    assert [bad.reason for bad in Map(call=lambda record: record).apply(batch, seed=0).quarantined] == ["invalid_json"]


@pytest.mark.parametrize("columns", [{"x": "int65"}, {"origin": "int64"}, {"x": "list<strin>"}])
def test_senseless_columns_are_refused(columns):
    with pytest.raises(UsageError):
        Map(call=len, columns=columns).output_schema(documents([]).schema)
