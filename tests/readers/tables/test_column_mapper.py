"""Columns of files become columns of a source: types are widened without a change of values, or refused."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.readers.tables.test_arrow import write_arrow_file, write_arrow_stream

from gristmill.core.errors import UsageError
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader


def write_parquet(table, rows):
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows)
    return sink.getvalue()


WRITERS = {"x.parquet": write_parquet, "x.arrow": write_arrow_file, "y.arrow": write_arrow_stream}


TYPES = {
    "string": pa.array(["a", "b"]),
    "large_string": pa.array(["a", "b"], pa.large_string()),
    "string_view": pa.array(["a", "b"], pa.string_view()),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "binary": pa.array([b"a", b"b"]),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", TYPES)
def test_all_kinds_of_text_columns(new_file, read_all, name, kind):
    table = pa.table({"content": TYPES[kind], "tag": pa.array(["x", "y"]).dictionary_encode()})
    file = new_file(name, WRITERS[name](table, 10))
    outcome = read_all(Read(read="x", text="content"), file, keeps_record=True)
    assert outcome.texts == ["a", "b"]
    assert [record["tag"] for record in outcome.records] == ["x", "y"]
    assert "content" not in outcome.records[0]


@pytest.mark.parametrize("name", WRITERS)
def test_nested_fields(new_file, read_all, name):
    table = pa.table({"payload": [{"body": "a", "n": 1}, {"body": None, "n": 2}, None], "other": [1, 2, 3]})
    file = new_file(name, WRITERS[name](table, 2))
    outcome = read_all(Read(read="x", text="payload.body", columns=["payload.n"]), file)
    assert [(record["text"], record["payload.n"]) for record in outcome.records] == [("a", 1)]
    assert outcome.reasons == ["null_text", "null_text"]


@pytest.mark.parametrize("name", WRITERS)
def test_bad_texts_are_set_aside_row_by_row(new_file, read_all, name):
    values = pa.array([b"good", b"\xff", b"x" * 50, b"fine"], pa.binary())
    not_checked = pa.StringArray.from_buffers(4, values.buffers()[1], values.buffers()[2])
    file = new_file(name, WRITERS[name](pa.table({"text": not_checked}), 10))
    outcome = read_all(Read(read="x", max_record_bytes=40), file)
    assert outcome.texts == ["good", "fine"]
    assert [(bad.position, bad.reason, bad.raw, bad.num_bytes) for bad in outcome.bad] == [
        (1, "invalid_utf8", b"\xff", 1),
        (2, "too_large", None, 50),
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_wrong_columns_are_refused_in_the_plan(new_file, name):
    file = new_file(name, WRITERS[name](pa.table({"content": ["a"], "n": [1], "text": ["b"]}), 10))
    for read, message in [
        (Read(read="x", text="contents"), "did you mean"),
        (Read(read="x", text="n"), "not text"),
        (Read(read="x", columns=["m"]), "'m'"),
        (Read(read="x", columns=["n.x"]), "'n.x'"),
    ]:
        with pytest.raises(UsageError, match=message):
            plan_schema(read, [file], keeps_record=False)
    schema = plan_schema(Read(read="x", text="content"), [file], keeps_record=True)
    assert schema.names == ["origin", "text", "n", "other_fields"]  # two columns would be called text


def test_types_must_agree_between_files(new_file):
    files = [
        new_file("a.parquet", write_parquet(pa.table({"text": ["a"], "n": kind}), 1))
        for kind in (pa.array([1]), pa.array(["1"]))
    ]
    with pytest.raises(UsageError, match="int64"):
        plan_schema(Read(read="x", columns=["n"]), files, keeps_record=False)
    schema = plan_schema(Read(read="x", columns=["n"]), files[:1], keeps_record=False)
    with pytest.raises(UsageError, match="string"):  # a file that the plan did not look at
        open_reader(Read(read="x", columns=["n"]), files[1], schema)


@pytest.mark.parametrize("columns", [[], ["n"]], ids=["all are carried", "it is named"])
def test_a_column_that_some_files_lack_is_null_there(new_file, read_all, columns):
    one = new_file("a.parquet", write_parquet(pa.table({"text": ["a"], "n": [1]}), 1))
    two = new_file("b.parquet", write_parquet(pa.table({"text": pa.array(["b"], pa.large_string())}), 1))
    read = Read(read="x", columns=columns)
    schema = plan_schema(read, [one, two], keeps_record=not columns)
    records = [record for file in (one, two) for record in read_all(read, file, schema=schema).records]
    assert [record["n"] for record in records] == [1, None]


NUMBERS = {
    "int32": (pa.int32(), 2**31 - 1),
    "int64": (pa.int64(), 2**63 - 1),
    "uint8": (pa.uint8(), 255),
    "uint32": (pa.uint32(), 2**32 - 1),
    "float32": (pa.float32(), 1.5),
    "float64": (pa.float64(), 0.1),
    "list<int8>": (pa.list_(pa.int8()), [1]),
    "list<int64>": (pa.list_(pa.int64()), [2**40]),
    "string": (pa.string(), "1"),
}


JOINED = {
    ("int32", "int64"): pa.int64(),
    ("uint8", "int32"): pa.int32(),
    ("uint32", "int32"): pa.int64(),
    ("float32", "float64"): pa.float64(),
    ("list<int8>", "list<int64>"): pa.list_(pa.int64()),
    ("int64", "float64"): None,
    ("int64", "string"): None,
    ("list<int8>", "int32"): None,
}


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kinds", JOINED, ids=" and ".join)
def test_types_are_widened_where_no_value_changes(new_file, read_all, kinds, turned, name):
    kinds_in_order = kinds[::-1] if turned else kinds
    tables = [pa.table({"text": ["a"], "n": pa.array([NUMBERS[kind][1]], NUMBERS[kind][0])}) for kind in kinds_in_order]
    files = [new_file(name, WRITERS[name](table, 1)) for table in tables]
    read = Read(read="x", columns=["n"])
    if JOINED[kinds] is None:
        with pytest.raises(UsageError, match="'n'"):
            plan_schema(read, files, keeps_record=False)
        return
    schema = plan_schema(read, files, keeps_record=False)
    assert schema.field("n").type == JOINED[kinds]
    records = [record for file in files for record in read_all(read, file, schema=schema).records]
    assert [record["n"] for record in records] == [NUMBERS[kind][1] for kind in kinds_in_order]


@pytest.mark.parametrize(
    ("columns", "step"),
    [
        ({"question": ["a"], "answer": ["b"]}, "render: {fields: {prompt: question, response: answer}}"),
        ({"messages": [[{"role": "user", "content": "a"}]]}, "`render`"),
        ({"dialog": [[{"role": "user", "content": "a"}]]}, "render: {fields: {messages: dialog}}"),
        ({"question": ["a"], "answer": [7]}, "its columns are question, answer"),
    ],
)
def test_tables_of_chats_are_recognized_without_a_text_column(new_file, columns, step):
    file = new_file("x.parquet", write_parquet(pa.table(columns), 8))
    with pytest.raises(UsageError) as caught:
        plan_schema(Read(read="x.parquet"), [file], keeps_record=False)
    assert step in caught.value.help
