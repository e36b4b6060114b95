"""Fields of JSON objects: each bad line has its reason, and harms no other."""

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN_TYPE, SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.texts.delimited_file import DelimitedFile
from gristmill.readers.texts.json_fields import JsonFields
from gristmill.readers.texts.json_lines import JsonLinesReader

TEXT_ONLY = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string())])


REASONS = {
    b"{": "invalid_json",
    b'{"text": "a"': "invalid_json",
    b'{"text": "a"} {"text": "b"}': "invalid_json",
    b'{"text": "a"}{"text": "b"}': "invalid_json",
    b'{"text": 1, nonsense': "invalid_json",
    b"{'text': 'a'}": "invalid_json",
    b'{"text": "a", "x": NaN}': "invalid_json",
    b'{"text": "a", "x": 01}': "invalid_json",
    b'{"text": "a\x00"}': "invalid_json",
    b'{"text": "a\tb"}': "invalid_json",
    b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "invalid_json",
    b"[]": "not_an_object",
    b'"text"': "not_an_object",
    b"null": "not_an_object",
    b"{}": "missing_text",
    b'{"Text": "a"}': "missing_text",
    b'{"text": null}': "null_text",
    b'{"text": 1}': "text_not_a_string",
    b'{"text": {"text": "a"}}': "text_not_a_string",
    b'{"text": 1e999}': "text_not_a_string",
    b'{"text": "\xff"}': "invalid_utf8",
    b'{"text": "\xed\xa0\x80"}': "invalid_utf8",
    b'{"text": "a", "\xc3": 1}': "invalid_utf8",
    b'{"text": "\\ud800"}': "lone_surrogate",
    b'{"text": "a \\udc00\\ud800 b"}': "lone_surrogate",
    b'{"text": "a", "x": ["\\ud83d"]}': "lone_surrogate",
}


@pytest.mark.parametrize("line", REASONS, ids=lambda line: repr(line[:30]))
def test_each_bad_line_has_its_reason_and_harms_no_neighbour(new_file, read_all, line):
    good = b'{"text": "good"}\n'
    outcome = read_all(Read(read="x"), new_file("x.jsonl", good + line + b"\n" + good))
    assert outcome.texts == ["good", "good"]
    (bad,) = outcome.bad
    assert (bad.reason, bad.position, bad.raw, bad.num_bytes) == (REASONS[line], len(good), line, len(line))
    assert bad.message


GOOD_LINES = {
    b'{"text": "a\\u0000b"}': "a\0b",
    b'{"text": ""}': "",
    b'{"text": "\\ud83d\\ude00"}': "\U0001f600",
    b' \t{"text" : "a"}  ': "a",
    b'{"text": "a", "text": "b"}': "b",
    b'{"te\\u0078t": "a"}': "a",
    '{"text": "\u2028\x85\x0b"}'.replace("\x0b", "\\u000b").encode(): "\u2028\x85\x0b",
    b'{"text": "a", "x": 1e999}': "a",
    b'{"text": "a", "x": ' + b"[" * 300 + b"]" * 300 + b"}": "a",
}


@pytest.mark.parametrize("line", GOOD_LINES, ids=lambda line: repr(line[:30]))
def test_good_lines(new_file, read_all, line):
    outcome = read_all(Read(read="x"), new_file("x.jsonl", line), keeps_record=True)
    assert outcome.texts == [GOOD_LINES[line]]
    assert outcome.records[0]["record"] == line


def test_nested_text_and_columns(new_file, read_all):
    lines = [
        {"payload": {"body": "a", "score": 1}, "id": "x", "tags": ["t", None]},
        {"payload": {"body": "b", "score": 0.5}, "id": None},
        {"payload": {"body": "c"}, "meta": {"ok": True}},
        {"payload": "d"},
        {"payload": {"body": "e", "score": "high"}},
    ]
    read = Read(read="x", text="payload.body", columns=["id", "payload.score", "meta.ok", "tags"])
    sample = new_file("x.jsonl", "\n".join(map(json.dumps, lines[:3])).encode())
    schema = plan_schema(read, [sample], keeps_record=False)
    assert schema.types[2:] == [pa.large_string(), pa.float64(), pa.bool_(), pa.large_list(pa.large_string())]
    outcome = read_all(read, new_file("x.jsonl", "\n".join(map(json.dumps, lines)).encode()), schema=schema)
    rows = [tuple(record[name] for name in schema.names[1:]) for record in outcome.records]
    assert rows == [
        ("a", "x", 1.0, None, ["t", None]),
        ("b", None, 0.5, None, None),
        ("c", None, None, True, None),
    ]
    assert outcome.reasons == ["missing_text", "column_type"]


AWKWARD = [
    b'{"text": "a"}',
    b'{"text": "b", "more": {"c": [1]}}',
    b'{"text": "a"} {"text": "b"}',
    b'{"text": "a"}{"text": "b"}',
    b'{"text":',
    b'"a"}',
    b'{"text": {"x": 1}',
    b'{"x": {}}',
    b'{"text": "a"}\r',
    b"",
    b"  ",
    b"}",
    b"{",
    b'{"text": 5}',
    b'{"text": "\xff"}',
    b'{"text": "}{"}',
]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(AWKWARD), max_size=8), st.sampled_from([b"\n", b""]))
def test_lines_decoded_together_are_as_each_alone(lines, end):

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(b"\n".join(lines) + end)
        file = SourceFile(path=str(path), relative="a.jsonl", num_bytes=path.stat().st_size, version="", id=1)
        read = Read(read=str(path))

        def outcome(*, together):
            cells = DelimitedFile(file, b"\n", read.max_record_bytes, None, 4 << 20)
            reader = JsonLinesReader(read, cells, TEXT_ONLY)
            if not together:
                reader._decode_together = lambda cut: None
            found = list(reader.read_cells())
            return [
                (cell.batch.to_pylist(), cell.num_blank, [(bad.position, bad.reason) for bad in cell.quarantined])
                for cell in found
            ]

        assert outcome(together=True) == outcome(together=False)


@pytest.mark.parametrize("name", ['a"b', "c\\d", "e\tf"])
def test_a_name_that_the_decoder_cannot_have_is_an_error_for_people(name):
    with pytest.raises(UsageError, match="a quote, a backslash or a control character"):
        JsonFields("text", {name: pa.int64()})
