"""Parquet, Arrow files and streams, saved datasets: the same rows in any ranges, checked against their own writers."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import SourceFile
from gristmill.steps.read import Read, list_source_files, open_reader, plan_schema
from gristmill.storage.files import read_version
from gristmill.storage.listing.paths import find_files

TEXTS = st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=30)), max_size=40)


def write_parquet(table, rows):
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows)
    return sink.getvalue()


def write_arrow_file(table, rows):
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def write_arrow_stream(table, rows, options=None):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


WRITERS = {"x.parquet": write_parquet, "x.arrow": write_arrow_file, "y.arrow": write_arrow_stream}


@settings(max_examples=150, deadline=None)
@given(
    texts=TEXTS,
    name=st.sampled_from(sorted(WRITERS)),
    rows=st.integers(1, 20),
    cell_bytes=st.integers(1, 500),
    borders=st.lists(st.integers(0, 40), max_size=3).map(lambda inner: [0, *sorted(inner), None]),
)
def test_any_ranges_give_all_rows(new_file, ranges, texts, name, rows, cell_bytes, borders):
    table = pa.table({"text": pa.array(texts, pa.string()), "n": np.arange(len(texts))})
    file = new_file(name, WRITERS[name](table, rows))
    read = Read(read="x", columns=["n"])
    reader = open_reader(read, file, plan_schema(read, [file], keeps_record=False), cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    expected = [(row, text) for row, text in enumerate(texts) if text is not None]
    assert list(zip(whole.positions, whole.texts, strict=True)) == expected
    assert [record["n"] for record in whole.records] == whole.positions
    assert [(bad.position, bad.reason) for bad in whole.bad] == [
        (row, "null_text") for row, text in enumerate(texts) if text is None
    ]
    assert ranges(reader, borders) == whole
    assert len(reader.cell_sizes()) == len(whole.cells)


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
def test_no_rows(new_file, read_all, name):
    file = new_file(name, WRITERS[name](pa.table({"text": pa.array([], pa.string())}), 10))
    assert not read_all(Read(read="x"), file).records


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


@pytest.mark.parametrize(
    ("first", "columns"),
    [({"text": ["a"], "n": [1]}, []), ({"text": ["a"], "n": [1]}, ["n"]), ({"text": ["a"]}, [])],
    ids=["more", "all others named", "only the text"],
)
def test_a_column_that_the_plan_did_not_see_stops_the_run(new_file, first, columns):
    one = new_file("a.parquet", write_parquet(pa.table(first), 1))
    read = Read(read="x", columns=columns)
    schema = plan_schema(read, [one], keeps_record=True)
    with pytest.raises(UsageError, match="new"):
        open_reader(read, new_file("c.parquet", write_parquet(pa.table({"text": ["c"], "new": [1]}), 1)), schema)


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


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize("data", [b"", b"nonsense", b"PAR1nonsensePAR1", b"ARROW1\0\0nonsense"])
def test_files_that_are_something_else(new_file, name, data):
    with pytest.raises(UsageError, match=name):
        plan_schema(Read(read="x"), [new_file(name, data)], keeps_record=False)


def test_truncated_arrow_stream_is_used_as_far_as_it_goes(new_file, ranges):
    data = write_arrow_stream(pa.table({"text": [f"text {row}" for row in range(100)]}), 10)
    read = Read(read="x")
    for size in range(len(data) // 2, len(data) - 8, 97):
        file = new_file("x.arrow", data[:size])
        reader = open_reader(read, file, plan_schema(read, [file], keeps_record=False), cell_bytes=300)
        whole = ranges(reader, [0, None])
        assert whole.texts == [f"text {row}" for row in range(len(whole.texts))]
        assert len(reader.cell_sizes()) == len(whole.cells)
        if len(whole.records) < 100 and whole.bad:
            assert [(bad.reason, bad.position) for bad in whole.bad] == [("truncated_stream", len(whole.records))]
        for border in range(1, len(whole.cells) + 1):
            assert ranges(reader, [0, border, None]) == whole


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrow_bodies(new_file, read_all, codec):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    data = write_arrow_stream(pa.table({"text": ["a" * 1000] * 50}), 10, options)
    assert read_all(Read(read="x"), new_file("x.arrow", data), cell_bytes=2000).texts == ["a" * 1000] * 50


@pytest.mark.parametrize("name", ["x.arrow", "y.arrow"])
def test_encodings_are_undone_also_inside(new_file, read_all, name):
    tags = pa.ListArray.from_arrays([0, 1, 2], pa.array(["x", "y"]).dictionary_encode())
    table = pa.table({"text": ["a", "b"], "tags": tags, "both": [{"n": 1}, None]})
    file = new_file(name, WRITERS[name](table, 1))
    schema = plan_schema(Read(read="x"), [file], keeps_record=True)
    assert schema.field("tags").type == pa.list_(pa.large_string())
    outcome = read_all(Read(read="x"), file, schema=schema)
    assert [(record["tags"], record["both"]) for record in outcome.records] == [(["x"], {"n": 1}), (["y"], None)]


def test_saved_datasets(tmp_path, read_all):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = {"text": [f"text {row}" for row in range(2500)], "label": list(range(2500))}
    dataset = datasets.Dataset.from_dict(rows)
    both = datasets.DatasetDict(train=dataset, test=dataset.select(range(3, 10)))
    both.save_to_disk(tmp_path / "both", num_shards={"train": 3, "test": 1})
    (tmp_path / "both" / "train" / "cache-123.arrow").write_bytes(b"what a map left behind")
    read = Read(read="x")
    files = list_source_files("web", read, find_files(str(tmp_path / "both")))
    assert len(files) == 4
    assert len({file.id for file in files}) == 4
    texts = [text for file in files for text in read_all(read, file, keeps_record=True).texts]
    assert texts == [*rows["text"][3:10], *rows["text"]]
    [test] = list_source_files("web", Read(read="x", split={"train": "test"}), find_files(str(tmp_path / "both")))
    assert read_all(read, test).texts == rows["text"][3:10]
    with pytest.raises(UsageError, match="did you mean"):
        list_source_files("web", Read(read="x", split="tests"), find_files(str(tmp_path / "both")))
    train = list_source_files(
        "web", Read(read="x", format="hugging_face"), find_files(str(tmp_path / "both" / "train"))
    )
    outcome = read_all(Read(read="x", format="hugging_face"), train[0], keeps_record=True)
    assert [record["label"] for record in outcome.records] == outcome.positions

    (tmp_path / "both" / "train" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UsageError, match="data-00001-of-00003"):
        list_source_files("web", read, find_files(str(tmp_path / "both")))


def test_a_folder_that_is_no_saved_dataset(tmp_path):
    (tmp_path / "x.arrow").write_bytes(b"")
    read = Read(read="x", format="hugging_face")
    with pytest.raises(UsageError, match="save_to_disk"):
        list_source_files("web", read, find_files(str(tmp_path)))
    (tmp_path / "state.json").write_text(json.dumps({"files": []}))
    with pytest.raises(UsageError, match="save_to_disk"):
        list_source_files("web", read, find_files(str(tmp_path)))


@pytest.mark.parametrize("name", WRITERS)
def test_remote_files(name, ranges):
    fsspec = pytest.importorskip("fsspec")
    table = pa.table({"text": [f"text {row}" for row in range(100)]})
    path = f"memory://columnar/{name}"
    with fsspec.open(path, "wb") as sink:
        sink.write(WRITERS[name](table, 10))
    num_bytes, version = read_version(path)
    file = SourceFile(path, name, num_bytes, version, 7)
    read = Read(read="x")
    reader = open_reader(read, file, plan_schema(read, [file], keeps_record=False), cell_bytes=300)
    whole = ranges(reader, [0, None])
    assert whole.texts == table["text"].to_pylist()
    assert ranges(reader, [0, 1, 3, None]) == whole
