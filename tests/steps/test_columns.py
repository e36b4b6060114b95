import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, RECORD_TYPE, SPLIT, documents
from gristmill.steps import Rename, Select


def test_identity_and_split_stay_and_the_raw_record_goes():
    batch = documents(["hi"], url=["a"], **{SPLIT: ["train"]}).append_column(
        RECORD, pa.array([b"{}"], pa.large_binary())
    )
    selected = Select(columns=["url", "text"]).apply(batch, seed=0).batch
    assert selected.column_names == ["origin", SPLIT, "url", "text"]


@pytest.mark.parametrize("columns", [[], ["a", "a"], ["record"]])
def test_senseless_lists_are_refused(columns):
    with pytest.raises(UsageError):
        Select(columns=columns)


def test_missing_column_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as error:
        Select(columns=["urls"]).output_schema(documents([], url=[]).schema)
    assert "url" in error.value.help


def with_json(lines, **columns):
    return documents(["x"] * len(lines), **columns).append_column(RECORD, pa.array(lines, RECORD_TYPE))


def test_json_records_follow_and_keep_their_other_bytes():
    batch = with_json([b'{"url": "a", "x": 1.50}', b'{"x":  1e3}'], url=["a", None])
    renamed = Rename(columns={"url": "link"}).apply(batch, seed=0).batch
    assert renamed.column("link").to_pylist() == ["a", None]
    assert renamed.column(RECORD).to_pylist() == [b'{"link":"a","x":1.50}', b'{"x":1e3}']


def test_a_record_that_has_the_name_already_is_set_aside():
    batch = with_json([b'{"url": "a", "link": 1}', b'{"url": "b"}'], url=["a", "b"])
    applied = Rename(columns={"url": "link"}).apply(batch, seed=0)
    assert applied.batch.column("link").to_pylist() == ["b"]
    assert [(bad.position, bad.reason, bad.raw) for bad in applied.quarantined] == [
        (0, "name_taken", b'{"url": "a", "link": 1}')
    ]


def test_two_columns_change_places():
    batch = with_json([b'{"a": 1, "b": 2}'], a=[1], b=[2])
    renamed = Rename(columns={"a": "b", "b": "a"}).apply(batch, seed=0).batch
    assert renamed.column("a").to_pylist() == [2]
    assert renamed.column(RECORD).to_pylist() == [b'{"b":1,"a":2}']


def test_text_is_found_where_it_was_read():
    batch = with_json([b'{"content": "x"}'])
    schema = batch.schema.set(1, batch.schema.field(1).with_metadata({"path": "content"}))
    batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    renamed = Rename(columns={"text": "body"}).apply(batch, seed=0).batch
    assert renamed.column(RECORD).to_pylist() == [b'{"body":"x"}']


@pytest.mark.parametrize(
    "columns", [{}, {"origin": "a"}, {"a": "record"}, {"a": "c", "b": "c"}, {"a": "b"}, {"missing": "c"}]
)
def test_senseless_names_are_refused(columns):
    with pytest.raises(UsageError):
        Rename(columns=columns).output_schema(documents([], a=[], b=[]).schema)
