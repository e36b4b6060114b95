"""Frames, Arrow tables and lists of texts as sources; files that polars wrote. Each gives what dicts would give."""

import sys

import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import PythonRecords
from gristmill.pipeline.planning.plan import make_plan
from gristmill.steps import Length, Read, Write

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

ROWS = [
    {"text": f"document number {number}, with ümlauts", "n": number, "tag": "ab"[number % 2]} for number in range(350)
]
TEXTS = [row["text"] for row in ROWS]


def categories(frame):
    return frame.with_columns(tag=frame["tag"].cast(polars.Categorical))


def reader_of(table):
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=37))


TABLES = {
    "pandas": lambda: pandas.DataFrame(ROWS),
    "pandas, some rows": lambda: pandas.DataFrame([{"text": "", "n": -1, "tag": "a"}, *ROWS]).query("n >= 0"),
    "pandas, pyarrow types": lambda: pandas.DataFrame(ROWS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: polars.DataFrame(ROWS),
    "polars, categories": lambda: categories(polars.DataFrame(ROWS)),
    "table": lambda: pa.Table.from_pylist(ROWS),
    "table in chunks": lambda: pa.concat_tables([pa.Table.from_pylist(ROWS[:101]), pa.Table.from_pylist(ROWS[101:])]),
    "batch": lambda: pa.RecordBatch.from_pylist(ROWS),
    "reader": lambda: reader_of(pa.Table.from_pylist(ROWS)),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_gives_its_rows(mill, kind):
    result = mill.run(mill.recipe({"py": Read(read=TABLES[kind](), columns=["n", "tag"])}, [Write(format="arrow")]))
    rows = [{name: record[name] for name in ("text", "n", "tag")} for record in result.dataset()]
    assert rows == ROWS
    assert result.manifest.schema is not None


def test_equal_rows_are_up_to_date_whatever_their_chunks(mill):
    def recipe(kind):
        return mill.recipe({"py": Read(read=TABLES[kind]())}, [Write(format="arrow")])

    mill.run(recipe("table"))
    for kind in ("table in chunks", "batch", "reader"):
        assert mill.run(recipe(kind)).was_up_to_date


def test_a_stream_is_read_once_but_planned_before(mill):
    read = Read(read=TABLES["reader"]())
    recipe = mill.recipe({"py": read}, [Write(format="jsonl")])
    make_plan(recipe, backend="serial")
    make_plan(recipe, backend="serial")
    assert len(mill.run(recipe).dataset()) == len(ROWS)
    with pytest.raises(UsageError, match="read to its end"):
        mill.run(recipe)


@pytest.mark.parametrize(
    "made", [list, tuple, iter, pandas.Series, polars.Series], ids=["list", "tuple", "iterator", "pandas", "polars"]
)
def test_texts_are_records(mill, made):
    recipe = mill.recipe(
        {"py": Read(read=made(TEXTS), text="payload.body")}, [Length(min_chars=5), Write(format="jsonl")]
    )
    result = mill.run(recipe)
    assert [record["payload"]["body"] for record in result.dataset()] == TEXTS


@pytest.mark.parametrize(
    ("entries", "is_paths"),
    [
        (["a.jsonl", "b c.jsonl.gz"], True),
        (["data", "more"], True),
        (["my data/", "s3://bucket/some key"], True),
        (["/a path/with spaces"], True),
        (["data/{0..9}.parquet"], True),
        (["One text.", "another one"], False),
        (["word", "two words"], False),
        (["line\nline.txt"], False),
        (["x" * 300], False),
    ],
)
def test_paths_and_texts_are_told_apart(entries, is_paths):
    assert isinstance(Read(read=entries).read, PythonRecords) != is_paths


def test_a_list_that_begins_with_a_folder_that_is_there_is_one_of_paths(tmp_path, monkeypatch):
    (tmp_path / "my corpus").mkdir()
    monkeypatch.chdir(tmp_path)
    again = Read(read=Read(read=["my corpus", "another one"]).read)
    assert again.read == ["./my corpus", "./another one"]


def test_words_that_are_no_files_are_taken_for_paths_with_a_hint(mill):
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe({"py": Read(read=["hello", "world"])}, [Write(format="jsonl")]), backend="serial")
    assert "texts" in caught.value.help


def test_paths_among_texts_are_refused():
    with pytest.raises(UsageError, match="both paths and texts"):
        Read(read=["a text of some words", "a.jsonl"])


def test_what_stands_among_texts_is_named():
    with pytest.raises(UsageError, match="entry 1 is 3"):
        Read(read=["a text of some words", 3])


def test_what_cannot_be_a_table_is_refused_in_words(mill):
    frame = pandas.DataFrame({"text": [1, "a", b"b"]})
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe({"py": Read(read=frame)}, [Write(format="arrow")]), backend="serial")
    assert caught.value.help


def test_a_lazy_frame_is_to_be_collected():
    with pytest.raises(UsageError) as caught:
        Read(read=polars.LazyFrame(ROWS))
    assert "collect" in caught.value.help


def test_neither_is_imported_for_it():
    """By their shape alone."""
    for name in ("pandas", "polars"):
        assert name not in sys.modules["gristmill.core.recipe"].__dict__


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("level", ["oldest", "newest"])
@pytest.mark.parametrize("form", ["write_ipc", "write_ipc_stream"])
def test_files_of_polars(mill, tmp_path, compression, level, form):
    frame = categories(polars.DataFrame(ROWS)).with_columns(more=polars.Series([[{"a": "b"}], []] * (len(ROWS) // 2)))
    level = getattr(polars.CompatLevel, level)()
    getattr(frame, form)(tmp_path / "a.arrow", compression=compression, compat_level=level)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/a.arrow", columns=["n", "tag"])}, [Write(format="arrow")])
    result = mill.run(recipe)
    assert [{name: record[name] for name in ("text", "n", "tag")} for record in result.dataset()] == ROWS


def test_a_file_of_polars_in_many_batches_is_cut(mill, tmp_path):
    frame = polars.concat([polars.DataFrame({"text": [f"{n} " + "x" * 100_000 for n in range(60)]})] * 4)
    frame.write_ipc(tmp_path / "a.arrow", record_batch_size=10)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/a.arrow")}, [Write(format="jsonl")], slice_bytes=5 << 20)
    assert len(mill.run(recipe).dataset()) == 240


def test_a_truncated_file_of_polars_is_an_error_in_words(mill, tmp_path):
    polars.DataFrame(ROWS).write_ipc(tmp_path / "a.arrow")
    (tmp_path / "a.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"a\.arrow"):
        make_plan(mill.recipe({"web": Read(read=f"{tmp_path}/a.arrow")}, [Write(format="jsonl")]), backend="serial")


EMPTY_TABLES = {
    "pandas": pandas.DataFrame,
    "pandas, a column": lambda: pandas.DataFrame({"text": []}),
    "polars": polars.DataFrame,
    "polars, a column": lambda: polars.DataFrame({"text": []}),
    "polars, text": lambda: polars.DataFrame(schema={"text": polars.String}),
    "table": lambda: pa.table({"text": []}),
    "generator": lambda: iter(()),
}


@pytest.mark.parametrize("kind", EMPTY_TABLES)
def test_what_holds_no_record_says_so(mill, kind):
    """Not that a column is missing or of another type, of which nothing can be known."""
    with pytest.raises(UsageError, match="holds no record"):
        mill.run(mill.recipe({"s": Read(read=EMPTY_TABLES[kind]())}, [Length(min_chars=1)]))


def test_errors_do_not_name_where_the_sample_is_kept(mill):
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe({"py": Read(read=polars.DataFrame({"body": ["a"]}))}, [Write(format="jsonl")]))
    assert "memory:" not in str(caught.value)
    assert "body" in caught.value.help
