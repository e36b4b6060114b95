"""Nothing is never made by accident: inputs without records, runs that leave none, empty splits; and links."""

import gzip
import json
import os

import pyarrow as pa
import pytest

from gristmill.core.errors import EmptyDatasetError, UsageError
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.planning.plan import make_plan
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Deduplicate, Length, Limit, Read, Shuffle, Split, Write

RECORDS = [{"text": f"text number {number}"} for number in range(20)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
WRITE = Write(format="jsonl")
NO_RECORDS = {
    "array.jsonl": json.dumps(RECORDS).encode(),
    "blank.jsonl": b"\n \n\n",
    "empty.json": b"[]",
    "field.json": b'{"data": []}',
    "numbers.json": b"[1, 2, 3]",
    "broken.json": b"[",
    "lines.jsonl": b"no json\n",
    "blank.txt": b" \n",
    "packed.jsonl.gz": gzip.compress(b""),
}


def reads(tmp_path, **contents):
    found = {}
    for name, content in contents.items():
        (tmp_path / f"{name}.jsonl").write_bytes(content)
        found[name] = Read(read=f"{tmp_path}/{name}.jsonl")
    return found


@pytest.mark.parametrize("name", NO_RECORDS)
def test_bytes_without_a_record_are_refused_by_the_plan(mill, tmp_path, name):
    (tmp_path / name).write_bytes(NO_RECORDS[name])
    sources = {**reads(tmp_path, web=LINES), "bad": Read(read=str(tmp_path / name))}
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe(sources, [WRITE]), backend="serial")
    assert "in source bad" in caught.value.__notes__
    assert name in caught.value.message or "text" in caught.value.message
    limited = make_plan(mill.recipe({"web": sources["web"]}, [WRITE]), limit=3, backend="serial")
    assert limited.is_limited


def test_an_array_in_one_line_is_read(mill, tmp_path):
    (tmp_path / "a.json").write_bytes(json.dumps(RECORDS).encode())
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/a.json")}, [WRITE]))
    assert [record["text"] for record in open_dataset(mill.output)] == [record["text"] for record in RECORDS]


def test_two_arrays_in_one_object_ask_for_the_field(mill, tmp_path):
    (tmp_path / "a.json").write_bytes(json.dumps({"train": RECORDS, "test": RECORDS}).encode())
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe({"web": Read(read=f"{tmp_path}/a.json")}, [WRITE]), backend="serial")
    assert "field: te" in caught.value.help
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/a.json", field="train")}, [WRITE]))
    assert len(open_dataset(mill.output)) == len(RECORDS)


def test_an_array_of_several_units_is_cut_like_lines(mill, tmp_path):
    """Where its units begin is found in one pass over it; slices never show."""
    records = [{"id": number, "text": f"{number} {'x' * (1 << 20)}"} for number in range(70)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "a.json").write_text(json.dumps(records))
    write = Write(format="jsonl")
    expected = mill.fresh_files(mill.recipe({"web": Read(read=f"{tmp_path}/a.jsonl")}, [write]))
    shards = [content for name, content in sorted(expected.items()) if name.startswith("train/web/")]
    for slice_bytes in (64 << 20, 10 << 20):
        read = Read(read=f"{tmp_path}/a.json")
        found = mill.fresh_files(mill.recipe({"web": read}, [write], slice_bytes=slice_bytes))
        assert [content for name, content in sorted(found.items()) if name.startswith("train/web/")] == shards
    assert len(shards) == 2
    place = trace(open_dataset(mill.output), 65).places[0]
    assert json.loads(place.original) == records[65]


@pytest.mark.parametrize("barrier", [[], [Shuffle()], [Deduplicate()]], ids=["local", "shuffle", "deduplicate"])
def test_a_run_that_leaves_nothing_fails_and_is_published_from_receipts(mill, tmp_path, barrier):
    sources = reads(tmp_path, web=LINES)
    steps = [*barrier, Length(min_chars=1000), WRITE]
    with pytest.raises(EmptyDatasetError) as caught:
        mill.run(mill.recipe(sources, steps))
    assert "length" in caught.value.message
    assert "too_short" in caught.value.message
    assert not (mill.output / "manifest.json").exists()
    done = {path: path.stat().st_mtime_ns for path in (mill.output / ".gristmill").rglob("*.arrow")}
    result = mill.run(mill.recipe(sources, steps, allow_empty=True), keep_work=True)
    assert len(result.dataset()) == 0
    assert "allow_empty" not in result.manifest.recipe
    assert all(path.stat().st_mtime_ns == time for path, time in done.items() if path.exists())
    # And it is the dataset of the recipe without the key, too.
    assert mill.run(mill.recipe(sources, steps)).was_up_to_date


def test_only_empty_files_leave_nothing(mill, tmp_path):
    with pytest.raises(EmptyDatasetError):
        mill.run(mill.recipe(reads(tmp_path, web=b""), [WRITE]))


def test_a_limited_run_never_fails_for_emptiness(mill, tmp_path):
    sources = reads(tmp_path, web=LINES, none=b"\n\n")
    result = mill.run(mill.recipe(sources, [Length(min_chars=1000), WRITE]), limit=5)
    assert len(result.dataset()) == 0


def test_a_limit_in_the_recipe_is_a_step_like_others(mill, tmp_path):
    with pytest.raises(EmptyDatasetError):
        mill.run(mill.recipe(reads(tmp_path, web=LINES), [Length(min_chars=1000), Limit(max_records=5), WRITE]))


def test_one_empty_source_among_others_is_a_warning(mill, tmp_path):
    sources = reads(tmp_path, web=LINES, few=b'{"text": "short"}\n', none=b"")
    recipe = mill.recipe(sources, [Length(min_chars=10), WRITE])
    result = mill.run(recipe)
    assert ["few" in result.warnings[0], "length" in result.warnings[0], "none" in result.warnings[1]] == [True] * 3
    assert len(result.warnings) == 2
    assert mill.run(recipe).warnings == result.warnings


def test_an_empty_split_is_a_warning(mill, tmp_path):
    result = mill.run(mill.recipe(reads(tmp_path, web=LINES), [Split(validation=1e-9, test=0.5), WRITE]))
    assert [warning for warning in result.warnings if "validation" in warning] == list(result.warnings)
    assert len(result.warnings) == 1


def saved_dict(folder, **splits):
    """What save_to_disk writes of a DatasetDict: a split without rows has no file."""
    for split, texts in splits.items():
        (folder / split).mkdir(parents=True)
        if texts:
            table = pa.table({"text": texts})
            with (
                pa.OSFile(str(folder / split / "data.arrow"), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as out,
            ):
                out.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}] if texts else []}
        (folder / split / "state.json").write_text(json.dumps(state))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return {"web": Read(read=str(folder))}


def test_an_empty_split_of_a_saved_dataset_is_a_warning(mill, tmp_path):
    recipe = mill.recipe(saved_dict(tmp_path / "data", train=["a text"], test=[]), [WRITE])
    result = mill.run(recipe)
    assert len(result.dataset()) == 1
    assert ["test" in warning for warning in result.warnings] == [True]
    assert mill.run(recipe).warnings == result.warnings


def test_a_saved_dataset_without_rows_is_refused(mill, tmp_path):
    with pytest.raises(UsageError):
        mill.run(mill.recipe(saved_dict(tmp_path / "data", train=[], test=[]), [WRITE]))


def test_files_without_a_byte_are_counted(mill, tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_bytes(LINES if number == 2 else b"")
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [WRITE])
    assert make_plan(recipe, backend="serial").outline().sources[0].num_empty_files == 4
    assert mill.run(recipe).books["web"][0].counters["empty_files"] == 4


@pytest.mark.parametrize("pattern", ["", "/data", "/data/*.jsonl", "/**/*.jsonl"])
def test_a_folder_as_in_the_cache_of_the_hub(mill, tmp_path, pattern):
    """Files there are links to blobs that have no suffix; beside them lie files that are none."""
    hub = tmp_path / "hub" / "datasets--a--b"
    snapshot = hub / "snapshots" / "0123"
    (snapshot / "data").mkdir(parents=True)
    (hub / "blobs").mkdir()
    half = LINES.find(b"\n", len(LINES) // 2) + 1
    for name, content in {"first": LINES[:half], "second": LINES[half:]}.items():
        (hub / "blobs" / name).write_bytes(content)
        (snapshot / "data" / f"{name}.jsonl").symlink_to(f"../../../blobs/{name}")
    (snapshot / "data" / "third.jsonl").write_bytes(b'{"text": "a file"}\n')
    recipe = mill.recipe({"web": Read(read=f"{snapshot}{pattern}")}, [WRITE])
    mill.run(recipe)
    texts = [record["text"] for record in open_dataset(mill.output)]
    assert texts == [*(record["text"] for record in RECORDS), "a file"]


def test_links_that_are_left_out_are_said(mill, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES)
    (tmp_path / "in" / "b.jsonl").symlink_to("a.jsonl")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "elsewhere")
    plan = make_plan(mill.recipe({"web": Read(read=f"{tmp_path}/in")}, [WRITE]), backend="serial")
    assert len(plan.sources[0].files) == 1
    assert sum("symbolic links left out" in note for note in plan.sources[0].notes) == 2


def test_a_link_into_the_output_is_refused(mill, tmp_path):
    sources = reads(tmp_path, web=LINES)
    mill.run(mill.recipe(sources, [WRITE]))
    [shard] = (mill.output / "train" / "web").glob("*.jsonl")
    os.symlink(shard, tmp_path / "linked.jsonl")
    with pytest.raises(UsageError, match="output"):
        make_plan(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [WRITE]), backend="serial")


@pytest.mark.parametrize("part", ["", "train"])
def test_a_saved_dataset_without_any_row_says_so(mill, tmp_path, part):
    saved_dict(tmp_path / "saved", train=[], test=[])
    with pytest.raises(UsageError, match="the saved dataset is empty"):
        mill.run(mill.recipe({"web": Read(read=str(tmp_path / "saved" / part))}, [WRITE]))


def test_what_someone_has_written_into_a_card_stays(mill, tmp_path):
    sources = reads(tmp_path, web=LINES)
    mill.run(mill.recipe(sources, [WRITE]))
    card = mill.output / "README.md"
    head, configs, rest = card.read_bytes().split(b"\n", 2)
    card.write_bytes(b"\n".join([head, b"license: mit", configs, rest + b"# Web pages of our group\n"]))
    assert open_dataset(mill.output).verify().problems == []
    mill.run(mill.recipe(sources, [Split(validation=0.3), WRITE]), overwrite=True)
    changed = card.read_bytes()
    assert changed.startswith(b"---\nlicense: mit\nconfigs: ")
    assert changed.endswith(b"\n---\n# Web pages of our group\n")
    assert b"validation/" in changed
    assert open_dataset(mill.output).verify().problems == []
    card.write_bytes(changed.replace(b"validation/", b"other/"))
    assert [problem.path for problem in open_dataset(mill.output).verify().problems] == ["README.md"]
