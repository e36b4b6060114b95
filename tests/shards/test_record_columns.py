"""JSON records to typed columns: a value that does not fit is kept in `other_fields`."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shards.record_columns import RecordColumns

VALUES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.lists(st.integers(0, 9), max_size=3)
RECORDS = st.lists(st.dictionaries(st.sampled_from(["n", "s", "b", "m"]), VALUES, max_size=4), min_size=1, max_size=5)


@given(RECORDS)
def test_no_value_is_lost_or_changed(records):
    columns = RecordColumns({"n": pa.int64(), "s": pa.large_string(), "b": pa.bool_()})
    arrays = columns.decode([json.dumps(record).encode() for record in records])
    for row, record in enumerate(records):
        rest = json.loads(arrays["other_fields"][row].as_py() or "{}")
        typed = {name: array[row].as_py() for name, array in arrays.items() if name != "other_fields"}
        stored = {name: value for name, value in typed.items() if value is not None} | rest
        assert stored == {name: value for name, value in record.items() if value is not None} | rest
        for name, value in stored.items():
            assert value == record[name]
            assert type(value) is type(record[name])


def test_skipped_keys_are_in_no_column():
    arrays = RecordColumns({"n": pa.int64()}, skipped={"text"}).decode([b'{"text": "a", "n": 1}', b"{}"])
    assert arrays["n"].to_pylist() == [1, None]
    assert arrays["other_fields"].to_pylist() == [None, None]
