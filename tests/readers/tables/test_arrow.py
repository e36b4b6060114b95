"""Parquet, Arrow files and streams, saved datasets: the same rows in any ranges, checked against their own writers."""

import io
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import list_source_files, open_reader
from gristmill.readers.tables import column_mapper
from gristmill.storage.files import read_version
from gristmill.storage.paths import find_files

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


@pytest.mark.parametrize("name", WRITERS)
def test_no_rows(new_file, read_all, name):
    file = new_file(name, WRITERS[name](pa.table({"text": pa.array([], pa.string())}), 10))
    assert not read_all(Read(read="x"), file).records


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


VALUE, NUM_USES = "x" * 60_000, 30_000
INDICES = pa.array(np.zeros(NUM_USES, np.int32))
REPEATED = {
    "dictionary": lambda: pa.DictionaryArray.from_arrays(INDICES, [VALUE]),
    "run": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([NUM_USES], pa.int32()), pa.array([VALUE])),
    "list": lambda: pa.ListArray.from_arrays(
        pa.array(np.arange(0, NUM_USES + 1, 10, np.int32)), pa.DictionaryArray.from_arrays(INDICES, [VALUE])
    ),
    "list view": lambda: pa.ListViewArray.from_arrays(INDICES, pa.array(np.ones(NUM_USES, np.int32)), [VALUE]),
    "view": lambda: pa.StringViewArray.from_buffers(
        pa.string_view(),
        NUM_USES,
        [None, pa.py_buffer(np.array([60_000, 0x78787878, 0, 0] * NUM_USES, np.int32)), pa.py_buffer(VALUE.encode())],
    ),
}


@pytest.mark.parametrize("kind", REPEATED)
@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_value_that_is_stored_once_makes_small_cells(new_file, name, kind):
    column = REPEATED[kind]()
    table = pa.table({"text": ["a"] * len(column), "much": column})
    if name == "x.parquet" and kind not in ("dictionary", "list"):
        pytest.skip("Parquet has no such columns")
    if name == "x.parquet":
        sink = io.BytesIO()
        pq.write_table(table, sink, store_schema=False)
        data = sink.getvalue()
    else:
        data = write_arrow_stream(table, len(table))
    assert len(data) < 1 << 20
    file = new_file(name, data)
    read = Read(read="x", columns=["much"])
    try:
        schema = plan_schema(read, [file], keeps_record=False)
    except UsageError:
        pytest.skip("such a column is refused in the plan")
    reader = open_reader(read, file, schema)
    cells = list(itertools.islice(reader.read_cells(), 3))
    assert cells[0].batch.num_rows
    for cell in cells:
        assert cell.batch.nbytes < 16 << 20
    assert not any(cell.quarantined for cell in cells)


def test_a_row_that_takes_gigabytes_is_quarantined_by_its_number(new_file, read_all):
    lists = pa.ListArray.from_arrays([0, 40_000], pa.DictionaryArray.from_arrays(pa.array([0] * 40_000), [VALUE]))
    data = write_arrow_stream(pa.table({"text": ["a"], "much": lists}), 1)
    outcome = read_all(Read(read="x", columns=["much"]), new_file("x.arrow", data))
    assert not outcome.records
    assert [(bad.reason, bad.position, bad.num_records) for bad in outcome.bad] == [("damaged", 0, 1)]


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
    [test] = list_source_files("web", Read(read="x", splits={"train": "test"}), find_files(str(tmp_path / "both")))
    assert read_all(read, test).texts == rows["text"][3:10]
    with pytest.raises(UsageError, match="did you mean"):
        list_source_files("web", Read(read="x", splits="tests"), find_files(str(tmp_path / "both")))
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


def test_a_piece_of_a_column_of_lists_is_decoded_alone():
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), pa.array(["x" * 1000]))
    lists = pa.ListArray.from_arrays(range(0, 4001, 4), pa.StructArray.from_arrays([values], names=["a"]))
    piece = column_mapper._cast_to_plain_array(lists.slice(10, 5))
    assert piece.to_pylist() == [[{"a": "x" * 1000}] * 4] * 5
    assert piece.get_total_buffer_size() < 50_000
