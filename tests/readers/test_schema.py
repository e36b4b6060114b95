"""The plan of a source: columns and types come from what the files hold; mistakes are refused before the run."""

import json

import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema


def json_file(new_file, records, name="x.jsonl"):
    return new_file(name, "\n".join(map(json.dumps, records)).encode())


TYPES = {
    "text": (["a", None], pa.large_string()),
    "whole": ([1, None, 2], pa.int64()),
    "number": ([1, 2.5], pa.float64()),
    "truth": ([True, None], pa.bool_()),
    "list": ([["a"], None, []], pa.large_list(pa.large_string())),
    "nulls": ([None, None], pa.large_string()),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_come_from_the_sample(new_file, name):
    values, expected = TYPES[name]
    file = json_file(new_file, [{"text": "t", "value": value} for value in values])
    schema = plan_schema(Read(read="x", columns=["value"]), [file], keeps_record=True)
    assert schema.names == ["origin", "text", "value", "record"]
    assert schema.field("value").type == expected


@pytest.mark.parametrize("values", [["a", 1], [True, 1], [{"a": 1}], [["a"], "a"], [["a", 1]], [[{}]]])
def test_values_of_no_one_type_are_refused(new_file, values):
    file = json_file(new_file, [{"text": "t", "value": value} for value in values])
    with pytest.raises(UsageError, match="value"):
        plan_schema(Read(read="x", columns=["value"]), [file], keeps_record=False)


def test_fields_that_are_not_there_are_refused(new_file):
    file = json_file(new_file, [{"content": "t", "url": "u"}])
    with pytest.raises(UsageError, match='did you mean "content"'):
        plan_schema(Read(read="x", text="contents"), [file], keeps_record=False)
    with pytest.raises(UsageError, match='did you mean "url"'):
        plan_schema(Read(read="x", text="content", columns=["urls"]), [file], keeps_record=False)


def test_bad_and_empty_files_do_not_stop_the_plan(new_file):
    files = [new_file("a.jsonl", b""), new_file("b.jsonl", b'nonsense\n{"text": "a"'), new_file("c.jsonl.gz", b"no")]
    assert plan_schema(Read(read="x"), files, keeps_record=False).names == ["origin", "text"]


def test_the_sample_is_spread_over_the_files(new_file):
    files = [json_file(new_file, [{"text": "t"}]) for _ in range(40)]
    files.append(json_file(new_file, [{"text": "t", "late": 1}]))
    schema = plan_schema(Read(read="x", columns=["late"]), files, keeps_record=False)
    assert schema.field("late").type == pa.int64()


def test_one_source_has_one_format(new_file):
    files = [json_file(new_file, [{"text": "t"}]), new_file("x.txt", b"t")]
    with pytest.raises(UsageError, match="two formats"):
        plan_schema(Read(read="x"), files, keeps_record=False)
    assert plan_schema(Read(read="x", format="text"), files, keeps_record=True).names == ["origin", "text"]
    with pytest.raises(UsageError, match="separator"):
        plan_schema(Read(read="x", separator="\n"), files[:1], keeps_record=False)
    with pytest.raises(UsageError, match="columns"):
        plan_schema(Read(read="x", columns=["a"]), files[1:], keeps_record=False)
    with pytest.raises(UsageError, match="no files"):
        plan_schema(Read(read="x"), [], keeps_record=False)


def test_json_files_that_differ(new_file, read_all):
    """A field that is missing is null; a value that does not fit is quarantined with its reason, never made null."""
    read = Read(read="x", columns=["n"])
    first = json_file(new_file, [{"text": "a", "n": 1}])
    others = [{"text": "b"}, {"text": "c", "n": None}, {"text": "d", "n": "7"}, {"text": "e", "n": 2.5}]
    second = json_file(new_file, [*others, {"text": "f", "n": 2**70}, {"text": "g", "n": {"n": 1}}])
    schema = plan_schema(read, [first], keeps_record=False)  # as if the second file were not in the sample
    outcome = read_all(read, second, schema=schema)
    assert [(record["text"], record["n"]) for record in outcome.records] == [("b", None), ("c", None)]
    assert outcome.reasons == ["column_type", "column_type", "number_out_of_range", "column_type"]
    with pytest.raises(UsageError, match="different types"):
        plan_schema(read, [first, json_file(new_file, [{"text": "d", "n": "7"}])], keeps_record=False)
