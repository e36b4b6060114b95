import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, RECORD, RECORD_TYPE, TEXT, documents, texts
from gristmill.steps import Filter, Map, MapBatches


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


def test_none_drops_the_record_and_is_counted():
    batch = json_batch([{"text": "a"}, {"text": "b"}, {"text": "c"}])
    applied = Map(call=lambda record: None if record["text"] == "b" else record).apply(batch, seed=0)
    assert texts(applied.batch) == ["a", "c"]
    assert (applied.dropped, applied.quarantined) == ({"returned_none": 1}, [])


def split_lines(record):
    return [{**record, "text": line} for line in record["text"].splitlines()]


def test_one_record_becomes_several_whose_parts_are_numbered():
    batch = json_batch([{"text": "a\nb", "n": 1}, {"text": ""}, {"text": "c", "n": 2}, {"text": "d\n", "n": 3}])
    applied = Map(call=split_lines, flat=True).apply(batch, seed=0)
    assert texts(applied.batch) == ["a", "b", "c", "d"]
    assert [json.loads(record)["n"] for record in applied.batch.column(RECORD).to_pylist()] == [1, 1, 2, 3]
    origins = applied.batch.column(ORIGIN).to_pylist()
    assert [(origin["position"], origin["part"]) for origin in origins] == [(0, 0), (0, 1), (2, 0), (3, 0)]
    assert (applied.created, applied.dropped, applied.quarantined) == (1, {"returned_none": 1}, [])


@given(st.lists(st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=3), max_size=4))
def test_parts_of_parts_balance_and_have_different_origins(pages):
    batch = documents(["|".join(" ".join(words) for words in page) for page in pages])
    first = Map(call=lambda record: [{"text": t} for t in record["text"].split("|")], flat=True).apply(batch, seed=0)
    second = Map(call=lambda record: [{"text": t} for t in record["text"].split()], flat=True).apply(
        first.batch, seed=0
    )
    for before, applied in ((batch, first), (first.batch, second)):
        assert before.num_rows + applied.created == applied.batch.num_rows + sum(applied.dropped.values())
        assert int((applied.codes == 0).sum()) == before.num_rows - sum(applied.dropped.values())
    assert texts(second.batch) == [word for page in pages for words in page for word in words]
    origins = [tuple(origin.values()) for origin in second.batch.column(ORIGIN).to_pylist()]
    assert len(set(origins)) == len(origins)


@pytest.mark.parametrize(
    ("result", "flat", "reason"),
    [
        ([{"text": "x"}], False, "flat: true"),
        ({"text": "x"}, True, "not a list"),
        ([{"text": "x"}, 5], True, "not a dict"),
    ],
)
def test_a_list_where_none_is_expected_is_set_aside_whole(result, flat, reason):
    applied = Map(call=lambda record: result, flat=flat).apply(documents(["a"]), seed=0)
    assert applied.batch.num_rows == applied.created == 0
    assert reason in applied.quarantined[0].message


def test_functions_get_arguments_and_classes_are_constructed_once(tmp_path):
    (tmp_path / "own.py").write_text(
        "num_loads = 0\n"
        "def add(record, suffix): return {'text': record['text'] + suffix}\n"
        "class Words:\n"
        "    def __init__(self, words):\n"
        "        global num_loads\n"
        "        num_loads += 1\n"
        "        self.words = set(words)\n"
        "    def __call__(self, record): return record['text'] in self.words\n"
        "def count(record): return {'text': str(num_loads)}\n"
    )
    add = Map(call=f"{tmp_path}/own.py:add", args={"suffix": "!"})
    assert texts(add.apply(documents(["a"]), seed=0).batch) == ["a!"]
    kernel = Filter(call=f"{tmp_path}/own.py:Words", args={"words": ["a", "b"]}).load()
    for _ in range(3):
        assert texts(kernel.apply(documents(["a", "c", "b"]), 0).batch) == ["a", "b"]
    assert texts(Map(call=f"{tmp_path}/own.py:count").apply(documents(["x"]), seed=0).batch) == ["1"]
    with pytest.raises(UsageError, match=r"constructing .*Words failed: TypeError"):
        Filter(call=f"{tmp_path}/own.py:Words", args={"word": []}).load()
    with pytest.raises(UsageError, match="plain data"):
        Filter(call=f"{tmp_path}/own.py:Words", args={"words": object()})


def test_a_class_takes_batches():
    class Upper:
        def __init__(self, times=1):
            self.times = times

        def __call__(self, batch):
            return batch.set_column(1, TEXT, pc.binary_repeat(pc.utf8_upper(batch[TEXT]), self.times))

    assert texts(MapBatches(call=Upper, args={"times": 2}).apply(documents(["a"]), seed=0).batch) == ["AA"]


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


def upper(batch):
    return batch.set_column(1, "text", pc.utf8_upper(batch["text"]))


def json_batch_map_batches(records):
    lines = [json.dumps(record).encode() for record in records]
    words = [record["text"] for record in records]
    return documents(words).append_column(RECORD, pa.array(lines, RECORD_TYPE))


def test_json_records_follow_the_columns_and_others_keep_their_bytes():
    records = [{"text": "a", "x": 1.5}, {"text": "B", "x": 1e300}]
    batch = json_batch_map_batches(records)
    applied = MapBatches(call=upper).apply(batch, seed=0)
    lines = applied.batch.column(RECORD).to_pylist()
    assert lines[0] == b'{"text":"A","x":1.5}'
    assert lines[1] == batch.column(RECORD)[1].as_py()  # unchanged

    def measure(batch):
        return batch.append_column("chars", pc.utf8_length(batch["text"]))

    applied = MapBatches(call=measure, columns={"chars": "int64"}).apply(batch, seed=0)
    assert [json.loads(line)["chars"] for line in applied.batch.column(RECORD).to_pylist()] == [1, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda batch: None,
        lambda batch: batch.drop_columns(["origin"]),
        lambda batch: batch.append_column("new", batch["text"]),
        lambda batch: batch.take(pa.array([0, 0])),
        lambda batch: batch.set_column(0, "origin", documents(["x"] * batch.num_rows, first=99)["origin"]),
        lambda batch: batch.set_column(1, "text", pa.nulls(batch.num_rows, pa.large_string())),
        lambda batch: batch.set_column(1, "text", pa.array([1] * batch.num_rows)).set_column(
            1, "text", batch["origin"]
        ),
    ],
    ids=["nothing", "no origin", "undeclared", "same origin twice", "foreign origin", "null text", "wrong type"],
)
def test_a_batch_that_breaks_the_rules_is_set_aside(call):
    applied = MapBatches(call=call).apply(documents(["a", "b"]), seed=0)
    assert applied.batch.num_rows == 0
    assert [bad.reason for bad in applied.quarantined] == ["exception"] * 2


def test_changing_the_raw_record_itself_is_refused():
    def rewrite(batch):
        return batch.set_column(2, RECORD, pa.array([b"{}"] * batch.num_rows, RECORD_TYPE))

    applied = MapBatches(call=rewrite).apply(json_batch_map_batches([{"text": "a"}]), seed=0)
    assert "record" in applied.quarantined[0].message


def test_reordered_and_dropped_rows_are_accounted_for():
    applied = MapBatches(call=lambda batch: batch.take(pa.array([2, 0]))).apply(documents(list("abc")), seed=0)
    assert texts(applied.batch) == ["c", "a"]
    assert (applied.dropped, applied.created) == ({"rejected": 1}, 0)


def test_a_missing_function_is_an_error_of_the_recipe_not_of_the_records(tmp_path):
    with pytest.raises(UsageError):
        MapBatches(call=f"{tmp_path}/none.py:f").apply(documents(["a"]), seed=0)


def test_an_empty_batch_does_not_call():
    assert MapBatches(call=lambda batch: 1 / 0).apply(documents([]), seed=0).batch.num_rows == 0
