"""Formats from names.

Files that are not what their names say: the help tells what they are.

Readers of installed packages.
"""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.fake_packages import forget_packages, install_package

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.core.records import ORIGIN, SourceFile
from gristmill.pipeline.inspecting.trace import trace_input
from gristmill.pipeline.planning.plan import make_plan
from gristmill.readers.formats import FORMATS, advise_on_file, file_format
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.steps import Read

NAMES = {
    "a/b.jsonl": "jsonl",
    "b.JSONL.GZ": "jsonl",
    "b.json.zst": "json",
    "s3://bucket/b.ndjson.bz2": "jsonl",
    "b.parquet": "parquet",
    "b.arrow": "arrow",
    "b.txt.xz": "text",
    "b.md": "text",
    "b.tar": "webdataset",
    "b.tar.gz": "webdataset",
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", FORMATS)
def test_modules_have_what_the_table_says(name):
    entry = FORMATS[name]
    needed = {"objects": "sample_records", "table": "read_schemas", "own": "plan_columns"}[entry.content]
    module = entry.load()
    assert entry.is_dataset or (callable(module.open_file) and callable(getattr(module, needed)))
    assert entry.folder or entry.suffixes


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_by_name(name):
    assert file_format(name) == NAMES[name]


def test_declared_wins():
    assert file_format("data.bin", "jsonl") == "jsonl"


@pytest.mark.parametrize("name", ["data.bin", "data", "data.gz", "b.parquet.gz", "b.arrow.zst"])
def test_what_cannot_be_read_is_refused(name):
    with pytest.raises(UsageError, match=name):
        file_format(name)


def test_unknown_format_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="parquet"):
        file_format("x", "parket")


def whole_parquet(folder):
    pq.write_table(pa.table({"text": ["one"]}), folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 7\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><title>Sign in</title>", "web page"),
        (b'{"text": "one"}\n', "format: jsonl"),
        (gzip.compress(b"x" * 99, mtime=0), "gzip"),
        (b"", "empty"),
        (bytes(4096), "zeros"),
        (b"MZ something else", "MZ"),
    ],
)
def test_the_help_names_what_it_is(tmp_path, suffix, content, told):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        make_plan(Recipe(sources={"web": Read(read=str(path))}, output=str(tmp_path / "out")))
    if content:  # of an empty file other messages may come first
        assert told in raised.value.help
    assert told in advise_on_file(str(path), suffix)
    assert "again" not in (raised.value.help or "")


def test_a_parquet_file_that_ends_too_early(tmp_path):
    content = whole_parquet(tmp_path)
    path = tmp_path / "a.parquet"
    path.write_bytes(content[:-20])
    with pytest.raises(UsageError) as raised:
        make_plan(Recipe(sources={"web": Read(read=str(path))}, output=str(tmp_path / "out")))
    assert "ends too early" in raised.value.help
    path.rename(tmp_path / "a.arrow")
    path.write_bytes(content)
    assert "stopped" not in advise_on_file(str(tmp_path / "nothing.arrow"), "arrow")


READERS = """
import json
from gristmill.core.errors import CorruptStreamError

def read_records(path):
    with open(path) as file:
        for line in file:
            if line == "fail\\n":
                raise ValueError("a line that says so")
            if line == "damaged\\n":
                raise CorruptStreamError("the file ends here", truncated=True)
            yield eval(line)

def read_number(path):
    return 3

def read_texts(path):
    return "abc"

value = 3
"""


def install(site, value="read_records", name="recs"):
    install_package(
        site, "fake-reader", {"gristmill.readers": {name: f"fake_reader:{value}"}}, {"fake_reader.py": READERS}
    )
    forget_packages()


@pytest.fixture
def write(tmp_path):
    def write(*lines, name="a.recs"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return str(tmp_path / name)

    return write


def read_all(path, cell_bytes=4 << 20, **parameters):
    """All cells of a file, with its whole records."""
    file = SourceFile(path=path, relative=path, num_bytes=1, version="", id=7)
    read = steps.Read(read=path, **parameters)
    schema = plan_schema(read, [file], keeps_record=True)
    return open_reader(read, file, schema, cell_bytes=cell_bytes)


def test_the_suffix_of_a_file_is_the_name_of_its_format(site):
    with pytest.raises(UsageError, match="the format cannot be told"):
        file_format("mail/a.recs")
    install(site)
    assert file_format("mail/a.recs") == file_format("a.recs.gz") == file_format("a.dat", "recs") == "recs"
    with pytest.raises(UsageError, match="format must be one of") as raised:
        steps.Read(read="a.dat", format="rcs")
    assert 'did you mean "recs"?' in raised.value.help


def test_records_become_json_with_their_numbers(site, write):
    install(site)
    path = write("{'text': 'one', 'n': 1}", "'no dict'", "{'text': 'two', 'n': float('nan')}", "{'text': {1, 2}}", "{}")
    [cell] = read_all(path).read_cells()
    assert cell.batch.column("text").to_pylist() == ["one", "two"]
    assert cell.batch.column("record").to_pylist() == [b'{"text":"one","n":1}', b'{"text":"two","n":null}']
    assert cell.batch.column(ORIGIN).field("position").to_pylist() == [0, 2]
    assert [(bad.position, bad.reason) for bad in cell.quarantined] == [
        (1, "not_an_object"),
        (3, "not_json"),
        (4, "missing_text"),
    ]
    assert cell.counters["nan_as_null"] == 1


def test_any_range_of_cells_gives_the_same_records(site, write):
    install(site)
    path = write(*(repr({"text": "x" * 50, "n": n}) for n in range(100)))
    reader = read_all(path, cell_bytes=1000)
    assert not reader.can_cut
    cells = list(reader.read_cells())
    assert [cell.cell for cell in cells] == list(range(len(cells)))
    assert len(cells) > 5
    positions = [n for cell in cells for n in cell.batch.column(ORIGIN).field("position").to_pylist()]
    assert positions == list(range(100))
    for first in range(len(cells)):
        for stop in range(first, len(cells) + 1):
            batches = [cell.batch for cell in reader.read_cells(first, stop)]
            assert batches == [cell.batch for cell in cells[first:stop]]


def test_an_empty_file_has_no_records(site, write):
    install(site)
    cells = list(read_all(write()).read_cells())
    assert sum(cell.batch.num_rows + cell.num_blank + len(cell.quarantined) for cell in cells) == 0


def test_a_large_record_is_quarantined(site, write):
    install(site)
    path = write(repr({"text": "small"}), repr({"text": "x" * 500}), repr({"text": "last"}))
    [cell] = read_all(path, max_record_bytes=100).read_cells()
    assert cell.batch.column(ORIGIN).field("position").to_pylist() == [0, 2]
    assert [(bad.position, bad.reason, bad.raw) for bad in cell.quarantined] == [(1, "too_large", None)]


def test_a_damaged_file_keeps_what_was_read(site, write):
    install(site)
    [cell] = read_all(write(repr({"text": "one"}), "damaged")).read_cells()
    assert cell.batch.num_rows == 1
    assert [(bad.position, bad.reason) for bad in cell.quarantined] == [(1, "truncated_stream")]


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_failing_reader_stops_the_run_and_is_named(site, write, tmp_path, backend):
    install(site)
    path = write(*(repr({"text": "x" * 5000}) for _ in range(2_000)), "fail")
    recipe = gm.Recipe(sources={"a": steps.Read(read=path)}, steps=[], output=str(tmp_path / "out"))
    with pytest.raises(UsageError, match=r"reader 'recs' of package fake-reader.*a\.recs.*2,000 records: ValueError"):
        gm.run(recipe, backend=backend, workers=1, progress=False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("value", "fake_reader:value must be a function"),
        ("read_number", "must return an iterable of dicts, not 3"),
        ("read_texts", "must return an iterable of dicts, not 'abc'"),
        ("nothing", "cannot be imported"),
    ],
)
def test_a_reader_of_the_wrong_kind_is_refused(site, write, tmp_path, value, message):
    install(site, value)
    recipe = gm.Recipe(sources={"a": steps.Read(read=write("{}"))}, steps=[], output=str(tmp_path / "out"))
    with pytest.raises(UsageError, match=f"reader 'recs' of package fake-reader 1.0.*{message}"):
        gm.plan(recipe)


def test_a_package_may_not_replace_a_built_in_reader(site, write, tmp_path):
    install(site, name="jsonl")
    recipe = gm.Recipe(
        sources={"a": steps.Read(read=write('{"text": "a"}', name="a.jsonl"))}, steps=[], output=str(tmp_path / "out")
    )
    with pytest.raises(UsageError, match="provides the reader 'jsonl'"):
        gm.plan(recipe)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_from_files_to_shards_and_back(site, write, tmp_path, backend):
    install(site)
    for name in ("a", "b"):
        write(*(repr({"text": f"{name} {n}", "n": n}) for n in range(50)), name=f"{name}.recs")
    sources = {"recs": steps.Read(read=str(tmp_path / "*.recs"))}
    recipe = gm.Recipe(sources=sources, steps=[steps.Write(format="parquet")], output=str(tmp_path / "out"))
    result = gm.run(recipe, backend=backend, workers=2, progress=False)
    assert [(row["text"], row["n"]) for row in result.dataset()] == [(f"{f} {n}", n) for f in "ab" for n in range(50)]
    assert result.manifest.plugins == {"reader recs": "fake-reader 1.0"}
    traced = trace_input(result.dataset(), "recs:b.recs@23")
    assert json.loads(traced.original) == {"text": "b 23", "n": 23}


@pytest.mark.parametrize("declared", [None, "recs"])
def test_the_package_of_a_missing_reader_is_named(site, write, tmp_path, declared):
    install(site)
    output = tmp_path / "out"
    source = steps.Read(read=write(repr({"text": "a"})), format=declared)
    recipe = gm.Recipe(sources={"a": source}, steps=[steps.Write(format="jsonl")], output=str(output))
    result = gm.run(recipe, backend="serial", progress=False)
    next(site.rglob("entry_points.txt")).unlink()
    forget_packages()
    message = 'format "recs" comes from package fake-reader 1.0, which is not installed'
    with pytest.raises(UsageError, match=message):
        gm.run(recipe, backend="serial", progress=False)
    with pytest.raises(UsageError, match=message):
        trace_input(result.dataset(), "a:a.recs@0")
    (tmp_path / "recipe.yaml").write_text("{output: out, sources: {a: {read: a.recs, format: recs}}}")
    with pytest.raises(UsageError, match=message):
        gm.load_recipe(tmp_path / "recipe.yaml")
