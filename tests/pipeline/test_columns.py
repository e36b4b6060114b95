"""Columns that nobody named: all are written, from every format to every format, and none of them ever fails a run."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.record_forms import to_json_lines, to_tar, without_nulls, written_records

from gristmill.core.errors import UsageError
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.readers import schema as read_schema
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.steps import Deduplicate, Length, Map, Mix, Read, Rename, Select, Split, Write

FORMATS = ["jsonl", "parquet", "arrow", "webdataset"]
RECORDS = [
    {
        "text": f"text {n}",
        "url": f"https://example.org/{n}",
        "n": n,
        "score": n / 4,
        "tags": ["a", "b"][: n % 3],
        "meta": {"lang": "en", "inner": {"k": n}},
        "ok": n % 2 == 0,
        "nothing": None,
    }
    for n in range(20)
]


def write_table(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)


def put(folder, format, records=RECORDS, name="in"):
    """The records as a file of a format."""
    if format in ("jsonl", "webdataset"):
        path = folder / f"{name}.{'tar' if format == 'webdataset' else 'jsonl'}"
        path.write_bytes((to_tar if format == "webdataset" else to_json_lines)(records))
    else:
        path = folder / f"{name}.{format}"
        write_table(path, pa.Table.from_pylist(records))
    return path


def run(mill, sources, steps=()):
    reads = {name: read if isinstance(read, Read) else Read(read=str(read)) for name, read in sources.items()}
    result = run_recipe(mill.recipe(reads, list(steps)), RunOptions(backend="serial", progress=False))
    assert verify(mill.output)
    return result


def measures(result, source):
    counted = {}
    for account in result.manifest.books[source]:
        counted |= account.counters
    return counted


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_all_columns_from_every_format_to_every_format(mill, tmp_path, source, to):
    path = put(tmp_path, source)
    if source == "webdataset":
        run(mill, {"web": Read(read=str(path), text="txt")}, [Write(format=to)])
        found = written_records(mill.output, to, has_keys=True)
        assert [record.pop("__key__") for record in found] == [f"{n:04d}" for n in range(20)]
        # A tar that is written as a tar keeps its members; other formats have a column for each.
        members = [record if to == "webdataset" else {"text": record["text"], **record["json"]} for record in found]
        assert members == without_nulls(RECORDS)
    else:
        run(mill, {"web": path}, [Write(format=to)])
        assert written_records(mill.output, to) == without_nulls(RECORDS)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("between", FORMATS)
def test_a_dataset_of_ours_is_read_with_all_its_columns(mill, tmp_path, between, to):
    run(mill, {"web": put(tmp_path, "jsonl")}, [Write(format=between)])
    first = mill.output.rename(tmp_path / "first")
    run(mill, {"web": first}, [Write(format=to)])
    assert written_records(mill.output, to) == without_nulls(RECORDS)


def test_types_are_those_of_the_values(mill, tmp_path):
    run(mill, {"web": put(tmp_path, "jsonl")}, [Write(format="arrow")])
    [path] = mill.output.glob("train/web/*.arrow")
    schema = pa.ipc.open_stream(path.read_bytes()).schema
    meta = pa.struct([("lang", pa.large_string()), ("inner", pa.struct([("k", pa.int64())]))])
    types = {field.name: field.type for field in schema if field.name != "origin"}
    assert types == {
        "text": pa.large_string(),
        "url": pa.large_string(),
        "n": pa.int64(),
        "score": pa.float64(),
        "tags": pa.large_list(pa.large_string()),
        "meta": meta,
        "ok": pa.bool_(),
        "nothing": pa.large_string(),
    }


@pytest.mark.parametrize("to", ["arrow", "parquet"])
def test_what_the_sample_did_not_see_goes_to_other_fields(mill, tmp_path, monkeypatch, to):
    monkeypatch.setattr(read_schema, "_SAMPLE_BYTES", 1)
    monkeypatch.setattr(read_schema, "_ALL_SAMPLES_BYTES", 1)
    odd = [
        {"text": "new key", "n": 1, "new": {"a": [1, "x"]}},
        {"text": "other type", "n": "seven", "url": 7, "meta": {"lang": "de", "more": 1}},
        {"text": "reserved", "origin": "here", "split": "test", "record": 1, "input_ids": [1], 'a"b\\c\n': 1, "": 2},
        {"text": "plain", "n": 5},
    ]
    records = [*RECORDS[:3], *odd]
    result = run(mill, {"web": put(tmp_path, "jsonl", records)}, [Write(format=to)])
    assert written_records(mill.output, to) == without_nulls(records)
    assert measures(result, "web")["other_fields"] == 3
    assert result.manifest.quarantine.counts == {}


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    "kinds", [("jsonl", "jsonl"), ("jsonl", "parquet"), ("arrow", "parquet"), ("parquet", "jsonl")]
)
def test_sources_are_united_with_nulls_and_json(mill, tmp_path, kinds, to):
    one = [{"text": f"one {n}", "url": "u", "n": n, "k": n, "obj": {"a": n}} for n in range(5)]
    two = [{"text": f"two {n}", "n": n, "k": f"k{n}", "date": "today", "obj": {"b": "x"}} for n in range(5)]
    paths = {"one": put(tmp_path, kinds[0], one, "one"), "two": put(tmp_path, kinds[1], two, "two")}
    run(mill, paths, [Write(format=to)])
    assert written_records(mill.output, to) == [*one, *two]
    if to in ("arrow", "parquet"):
        schemas = {
            shard.path.split("/")[1]: open_dataset(mill.output)[0].keys()
            for _, _, shard in open_dataset(mill.output).manifest.shards()
        }
        assert schemas["one"] == schemas["two"]


def test_the_plan_says_which_columns_are_json_and_why_and_what_barriers_cost(mill, tmp_path):
    one = put(tmp_path, "parquet", [{"text": "a", "k": 1, "same": 1.5}], "one")
    two = put(tmp_path, "parquet", [{"text": "b", "k": "x", "same": 2.5}], "two")
    recipe = mill.recipe({"one": Read(read=str(one)), "two": Read(read=str(two))}, [Deduplicate(), Write()])
    outline = make_plan(recipe, backend="serial").outline()
    columns = outline.sources[0].columns
    assert "int64 in one" in columns["k"]
    assert "large_string in two" in columns["k"]
    assert columns["k"].startswith("json")
    assert columns["same"] == "double"
    assert outline.sources[1].columns == columns
    [stored] = outline.sources[0].stored_columns
    assert stored["k"] > 0
    assert set(stored) == {"origin", "text", "k", "same"}
    assert columns["k"] in str(outline)


def test_files_of_one_source_that_disagree(mill, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_table(folder / "a.parquet", pa.table({"text": ["a"], "k": [1], "only_a": ["x"]}))
    write_table(folder / "b.parquet", pa.table({"text": ["b"], "k": ["x"], "split": ["test"]}))
    run(mill, {"web": folder}, [Write(format="arrow")])
    expected = [{"text": "a", "k": 1, "only_a": "x"}, {"text": "b", "k": "x", "split": "test"}]
    assert written_records(mill.output, "arrow") == expected


def test_files_that_the_plan_did_not_look_at(mill, tmp_path, monkeypatch):
    monkeypatch.setattr(read_schema, "_MAX_LOCAL_FOOTERS", 2)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ace":
        write_table(folder / f"{name}.parquet", pa.table({"text": [name], "k": [1]}))
    write_table(folder / "b.parquet", pa.table({"text": ["b"], "k": ["x"], "more": [[1.5]]}))
    two = pa.table([pa.array(["d"]), pa.array([1]), pa.array(["y"])], names=["text", "dup", "dup"])
    write_table(folder / "d.parquet", two)
    result = run(mill, {"web": folder}, [Write(format="parquet")])
    by_text = {record["text"]: record for record in written_records(mill.output, "parquet")}
    assert by_text["b"] == {"text": "b", "k": "x", "more": [1.5]}
    assert by_text["d"] == {"text": "d", "dup": [1, "y"]}
    assert by_text["a"] == {"text": "a", "k": 1}
    assert measures(result, "web")["other_fields"] == 2


def test_named_columns_are_strict(mill, tmp_path):
    records = [*RECORDS[:3], {"text": "odd", "n": "x"}]
    path = put(tmp_path, "jsonl", RECORDS)
    late = put(tmp_path, "jsonl", records, "late")
    run(mill, {"web": Read(read=str(path), columns=["n"])}, [Write(format="arrow")])
    assert {*open_dataset(mill.output)[0]} == {"text", "n"}
    with pytest.raises(UsageError):
        run(mill, {"web": Read(read=str(late), columns=["n"])}, [Write(format="arrow")])
    with pytest.raises(UsageError):
        run(mill, {"web": Read(read=str(path), columns=["missing"])}, [Write(format="arrow")])


def test_steps_that_make_rename_and_select_columns(mill, tmp_path):
    path = put(tmp_path, "jsonl")
    steps = [Rename(columns={"url": "link"}), Map(call=lambda record: {**record, "twice": record["n"] * 2})]
    run(mill, {"web": path}, [*steps, Write(format="arrow")])
    expected = [
        {"text": r["text"], "link": r["url"], **{k: r[k] for k in r if k not in ("text", "url")}, "twice": r["n"] * 2}
        for r in RECORDS
    ]
    assert written_records(mill.output, "arrow") == without_nulls(expected)


def test_select_reads_no_more_than_it_names(mill, tmp_path):
    path = put(tmp_path, "parquet")
    recipe = mill.recipe({"web": Read(read=str(path))}, [Select(columns=["text", "url"]), Write(format="arrow")])
    assert set(make_plan(recipe, backend="serial").sources[0].schema.names) == {"origin", "text", "url"}


def test_barriers_between(mill, tmp_path):
    one, two = put(tmp_path, "jsonl", RECORDS[:10], "one"), put(tmp_path, "parquet", RECORDS[10:], "two")
    steps = [Length(min_chars=1), Deduplicate(), Mix(weights={"one": 1, "two": 1}, size=20, by="documents")]
    run(mill, {"one": one, "two": two}, [*steps, Write(format="arrow")])
    found = sorted(written_records(mill.output, "arrow"), key=lambda record: record["n"])
    for record in found:
        record.pop("source", None)
    assert found == without_nulls(RECORDS)


def test_text_under_another_name_and_a_key_that_is_called_text(mill, tmp_path):
    records = [{"text": n, "content": f"text {n}", "n": n} for n in range(5)]
    run(mill, {"web": Read(read=str(put(tmp_path, "jsonl", records)), text="content")}, [Write(format="arrow")])
    found = [{**record} for record in open_dataset(mill.output)]
    assert [json.loads(record["other_fields"]) for record in found] == [{"text": n} for n in range(5)]
    assert [record["text"] for record in found] == [f"text {n}" for n in range(5)]


def test_split_column_of_the_files_is_not_the_split(mill, tmp_path):
    records = [{"text": f"text {n}", "split": "dev"} for n in range(40)]
    run(mill, {"web": put(tmp_path, "jsonl", records)}, [Split(validation=0.5), Write(format="arrow")])
    assert [record["split"] for record in open_dataset(mill.output)] == ["dev"] * 40
    assert set(open_dataset(mill.output).manifest.splits) == {"train", "validation"}


NOT_FINITE = [1.5, float("nan"), float("inf"), None, float("-inf")]


@pytest.mark.parametrize("source", ["parquet", "arrow"])
@pytest.mark.parametrize("to", FORMATS)
def test_nan_is_kept_by_tables_and_counted_where_json_has_none(mill, tmp_path, source, to):
    path = tmp_path / f"in.{source}"
    texts = [f"text {n}" for n in range(5)]
    nested = [[{"x": value}] for value in NOT_FINITE]
    write_table(path, pa.table({"text": texts, "v": NOT_FINITE, "w": nested}))
    result = run(mill, {"web": path}, [Write(format=to)])
    found = written_records(mill.output, to)
    if to in ("parquet", "arrow"):
        assert [repr(record.get("v")) for record in found] == [repr(value) for value in NOT_FINITE]
        assert [repr(record["w"][0].get("x")) for record in found] == [repr(value) for value in NOT_FINITE]
        assert "nan_as_null" not in measures(result, "web")
    else:
        assert [record.get("v") for record in found] == [1.5, None, None, None, None]
        assert measures(result, "web")["nan_as_null"] == 6


@pytest.mark.parametrize("declared", [{}, {"v": "float64"}])
@pytest.mark.parametrize("to", ["jsonl", "arrow"])
def test_nan_that_a_function_makes(mill, tmp_path, declared, to):
    path = put(tmp_path, "jsonl", [{"text": "a"}, {"text": "b"}])
    step = Map(call=lambda record: {**record, "v": float("nan")}, columns=declared)
    result = run(mill, {"web": path}, [step, Write(format=to)])
    is_kept = to == "arrow" and declared
    assert measures(result, "web").get("nan_as_null", 0) == (0 if is_kept else 2)
    if is_kept:
        assert [repr(record["v"]) for record in written_records(mill.output, to)] == ["nan", "nan"]


HUGE = [b"1e400", b"-1e999", b"1" * 5000, b"-" + b"9" * 400, b"123456789012345678901234567890"]


@pytest.mark.parametrize("to", FORMATS)
def test_numbers_that_nothing_holds_pass_through_byte_for_byte(mill, tmp_path, to):
    lines = [b'{"text": "t%d", "n": %s, "deep": [{"k": %s}]}' % (n, number, number) for n, number in enumerate(HUGE)]
    lines += [b'{"text": "plain", "n": 7}']
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    run(mill, {"web": tmp_path / "in.jsonl"}, [Write(format=to)])
    assert len(list(open_dataset(mill.output))) == len(lines)
    again = mill.output.rename(tmp_path / "again")
    result = run(mill, {"web": again}, [Map(call=_same), Write(format=to)])
    assert result.manifest.quarantine.counts == {}
    assert len(list(open_dataset(mill.output))) == len(lines)
    stored = b"".join(path.read_bytes() for path in again.glob("train/web/*"))
    if to != "parquet":
        assert all(number in stored for number in HUGE)


def _same(record):
    return record


def test_numbers_out_of_range_in_a_typed_column(mill, tmp_path):
    lines = [b'{"text": "%d", "n": %d}' % (n, n) for n in range(600)]
    lines += [b'{"text": "huge", "n": %s}' % number for number in HUGE]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    result = run(mill, {"web": Read(read=str(tmp_path / "in.jsonl"), columns=["n"])}, [Write(format="arrow")])
    assert result.manifest.quarantine.counts == {"web": {"number_out_of_range": len(HUGE)}}


@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("to", ["jsonl", "parquet", "webdataset"])
def test_export_has_all_columns_and_counts_nan(mill, tmp_path, stored, to):
    run(mill, {"web": put(tmp_path, "jsonl")}, [Write(format=stored)])
    exported = export(mill.output, to=to, path=tmp_path / "exported", backend="serial", progress=False)
    folder = tmp_path / "check" / "train" / "web"
    folder.mkdir(parents=True)
    for file in exported.files:
        file.rename(folder / file.name)
    assert written_records(tmp_path / "check", to) == without_nulls(RECORDS)
    assert exported.nan_as_null == 0


def test_export_counts_nan(mill, tmp_path):
    write_table(tmp_path / "in.parquet", pa.table({"text": ["a", "b"], "v": [float("nan"), 1.0]}))
    run(mill, {"web": tmp_path / "in.parquet"}, [Write(format="arrow")])
    assert export(mill.output, to="jsonl", path=tmp_path / "x", backend="serial", progress=False).nan_as_null == 1
    assert export(mill.output, to="parquet", path=tmp_path / "x", backend="serial", progress=False).nan_as_null == 0


@pytest.mark.parametrize("to", ["jsonl", "arrow"])
def test_records_from_python_with_numbers_that_json_has_not(mill, to):
    records = [{"text": "a", "v": float("nan")}, {"text": "b", "v": 1.5, "w": 10**5000}]
    result = run(mill, {"py": Read(read=records)}, [Write(format=to)])
    assert measures(result, "py")["nan_as_null"] == 1
    [first, second] = open_dataset(mill.output)
    assert (first["text"], first["v"], second["v"]) == ("a", None, 1.5)
    assert "\0nan" not in first
    assert "other_fields" not in first
    assert str(second["w"]) == "1" + "0" * 5000
