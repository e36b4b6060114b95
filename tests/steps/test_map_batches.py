import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, RECORD_TYPE
from gristmill.core.sample_batches import documents, texts
from gristmill.steps import MapBatches


def upper(batch):
    return batch.set_column(1, "text", pc.utf8_upper(batch["text"]))


def json_batch(records):
    lines = [json.dumps(record).encode() for record in records]
    words = [record["text"] for record in records]
    return documents(words).append_column(RECORD, pa.array(lines, RECORD_TYPE))


def test_a_raising_batch_is_halved_to_the_record_at_fault():
    calls = []

    def fails_at_7(batch):
        calls.append(batch.num_rows)
        if "7" in texts(batch):
            raise ValueError("seven")
        return upper(batch)

    words = [str(number) for number in range(64)]
    applied = MapBatches(call=fails_at_7).apply(documents(words), seed=0)
    assert texts(applied.batch) == [word for word in words if word != "7"]
    assert [(bad.position, bad.reason) for bad in applied.quarantined] == [(7, "exception")]
    assert "seven" in applied.quarantined[0].traceback
    assert len(calls) == 1 + 2 * 6  # both halves, six times


def test_json_records_follow_the_columns_and_others_keep_their_bytes():
    records = [{"text": "a", "x": 1.5}, {"text": "B", "x": 1e300}]
    batch = json_batch(records)
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

    applied = MapBatches(call=rewrite).apply(json_batch([{"text": "a"}]), seed=0)
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
