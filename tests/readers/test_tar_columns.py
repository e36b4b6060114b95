"""Members of samples as columns."""

import json

import pytest
from tests.readers.test_webdataset import tar

from gristmill.core.errors import UsageError
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema


def test_json_members_and_columns(new_file, read_all):
    members = [
        ("a/1.json", json.dumps({"content": "one", "n": 1}, indent=2).encode()),
        ("a/1.cls", b"x"),
        ("a/2.json", b'{"content": "two"}'),
        ("a/3.json", b'{"content": null}'),
        ("a/4.json", b'{"content": "four", "n": "4"}'),
        ("a/5.json", b"{"),
        ("a/6.json", b'{"content": "\xff"}'),
        ("a/7.cls", b"x"),
    ]
    read = Read(read="x", text="json.content", columns=["json.n", "cls", "__key__"])
    schema = plan_schema(read, [new_file("x.tar", tar(members[:3]))], keeps_record=True)
    outcome = read_all(read, new_file("x.tar", tar(members)), schema=schema)
    assert [tuple(record.values())[1:] for record in outcome.records] == [
        ("one", 1, "x", "a/1"),
        ("two", None, None, "a/2"),
    ]
    assert outcome.positions == [0, 2]
    assert outcome.reasons == ["null_text", "column_type", "invalid_json", "invalid_utf8", "missing_text"]


def test_a_member_that_no_sample_has_is_refused_in_the_plan(new_file):
    file = new_file("x.tar", tar([("1.txt", b"a")]))
    for read in (Read(read="x"), Read(read="x", text="txt", columns=["cls"]), Read(read="x", text="json.text")):
        with pytest.raises(UsageError, match="member"):
            plan_schema(read, [file], keeps_record=False)
