"""A finished dataset as a source of another run: its shards and nothing else, in every format."""

import json
import shutil

import msgspec
import pytest

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.steps import Filter, Length, Map, Read, Rename, Split, Write

FORMATS = {
    "jsonl": Write(format="jsonl"),
    "jsonl.zst": Write(format="jsonl", compression="zstd"),
    "parquet": Write(format="parquet"),
    "arrow": Write(format="arrow"),
    "webdataset": Write(format="webdataset"),
}


def run(recipe):
    return run_recipe(recipe, RunOptions(backend="serial", progress=False))


@pytest.fixture
def first(tmp_path):
    """Makes a dataset of 200 records with a validation split and some quarantine."""
    lines = [json.dumps({"text": f"text {n}", "n": n, "more": {"n": [n]}}) for n in range(200)]
    (tmp_path / "raw.jsonl").write_text("\n".join([*lines, "{broken"]))

    def make(write, name="first", **source):
        output = tmp_path / name
        read = Read(read=str(tmp_path / "raw.jsonl"), columns=["n"], **source)
        run(Recipe(sources={"web": read}, steps=[Split(validation=0.2), write], output=str(output)))
        return output

    return make


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("again", FORMATS.values(), ids=FORMATS)
def test_every_format_into_every_other(first, mill, write, again):
    folder = first(write)
    result = mill.run(mill.recipe({"old": Read(read=str(folder), columns=["n"])}, [Length(min_chars=1), again]))
    dataset = result.dataset()
    assert sorted((record["n"], record["text"]) for record in dataset) == [(n, f"text {n}") for n in range(200)]
    assert result.books["old"][0].records_in == 200
    origin = dataset.origins(0)[0]
    assert origin.source == "old"
    assert origin.path.startswith(str(folder / "train")) or origin.path.startswith(str(folder / "validation"))
    [place] = trace(dataset, 7).places
    assert place.state == "unchanged"
    original = json.loads(place.original) if isinstance(place.original, str) else place.original
    assert original["text"] == dataset[7]["text"]


@pytest.mark.parametrize("name", ["jsonl", "webdataset"])
def test_whole_records_come_through_json_formats(first, mill, name):
    folder = first(FORMATS[name])
    mill.run(mill.recipe({"old": Read(read=str(folder))}, [Write(format="jsonl")]))
    records = sorted(open_dataset(mill.output), key=lambda record: record["n"])
    assert records == [{"text": f"text {n}", "n": n, "more": {"n": [n]}} for n in range(200)]


def test_a_text_that_only_the_tar_member_holds(first, mill, tmp_path):
    """Records that were columns before: the tar's JSON lacks the text, the record that is read does not."""
    middle = first(Write(format="parquet"))
    tars = tmp_path / "tars"
    run(Recipe(sources={"web": Read(read=str(middle))}, steps=[Write(format="webdataset")], output=str(tars)))
    steps = [Map(call=lambda record: {**record, "text": record["text"].upper()}), Write(format="jsonl")]
    mill.run(mill.recipe({"old": Read(read=str(tars))}, steps))
    assert sorted(open_dataset(mill.output), key=lambda record: record["n"])[3] == {"text": "TEXT 3", "n": 3}


def test_steps_name_the_columns_of_tars_as_of_other_shards(first, mill):
    steps = [Filter(call=lambda record: record["n"] < 5), Rename(columns={"n": "number"}), Write(format="arrow")]
    mill.run(mill.recipe({"old": Read(read=str(first(FORMATS["webdataset"])))}, steps))
    assert sorted(record["number"] for record in open_dataset(mill.output)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_one_split(first, mill, write):
    folder = first(write)
    expected = len(open_dataset(folder).split("validation"))
    mill.run(mill.recipe({"old": Read(read=str(folder), splits={"validation": "validation"})}, []))
    assert open_dataset(mill.output).splits == ["validation"]
    assert 0 < len(open_dataset(mill.output)) == expected < 100
    with pytest.raises(UsageError, match="did you mean"):
        mill.run(mill.recipe({"old": Read(read=str(folder), splits="validaton")}, []))


def test_a_split_of_plain_files_is_refused(mill, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="split"):
        mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/a.jsonl", splits="train")}, []))


def test_several_datasets_are_one_source(first, mill):
    folders = [str(first(FORMATS["arrow"], name)) for name in ("one", "two")]
    result = mill.run(mill.recipe({"old": Read(read=folders)}, []))
    assert len(result.dataset()) == 400
    assert all(path.relative.split("/")[0] in ("one", "two") for path in result.manifest.files.values())


def test_explicit_and_found_format_are_the_same_run(first, mill):
    folder = str(first(FORMATS["parquet"]))
    mill.run(mill.recipe({"old": Read(read=folder)}, []))
    again = mill.run(mill.recipe({"old": Read(read=folder, format="gristmill")}, []))
    assert again.was_up_to_date


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_the_same_bytes_for_any_workers(first, mill, write):
    recipe = mill.recipe({"old": Read(read=str(first(write)))}, [Length(min_chars=7), Write(format="jsonl")])
    expected = mill.fresh_files(recipe)
    for options in ({"backend": "processes", "workers": 1}, {"backend": "processes", "workers": 2}):
        assert mill.fresh_files(recipe, **options) == expected


def damage_size(folder, shard):
    with shard.open("ab") as file:
        file.write(b"x")


def remove(folder, shard):
    shard.unlink()


@pytest.mark.parametrize(("damage", "word"), [(damage_size, "bytes"), (remove, "missing")])
def test_a_damaged_shard_is_named_before_the_run(first, mill, damage, word):
    folder = first(FORMATS["jsonl"])
    shard = next((folder / "train").rglob("shard-*.jsonl"))
    damage(folder, shard)
    with pytest.raises(DamagedDatasetError, match=f"{shard.name} .*{word}"):
        mill.run(mill.recipe({"old": Read(read=str(folder))}, []))
    assert not mill.output.exists()


def test_an_unfinished_run_is_no_source(first, mill):
    folder = first(FORMATS["jsonl"])
    (folder / "manifest.json").unlink()
    (folder / ".gristmill").mkdir(exist_ok=True)
    with pytest.raises(UsageError, match="unfinished"):
        mill.run(mill.recipe({"old": Read(read=str(folder))}, []))


def test_a_dataset_of_another_kind_is_refused(first, mill):
    folder = first(FORMATS["jsonl"])
    manifest = msgspec.structs.replace(load_manifest(folder), kind="videos")
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest.seal())))
    with pytest.raises(UsageError, match="videos"):
        mill.run(mill.recipe({"old": Read(read=str(folder))}, []))


@pytest.mark.parametrize("pattern", ["{0}", "{0}/train", "{0}/**/*.jsonl", "{1}/link"])
def test_the_output_of_the_same_recipe_is_refused(first, tmp_path, pattern):
    folder = first(FORMATS["jsonl"])
    (tmp_path / "link").symlink_to(folder)
    before = load_manifest(folder)
    recipe = Recipe(sources={"web": Read(read=pattern.format(folder, tmp_path))}, output=str(folder))
    with pytest.raises(UsageError, match="output of this recipe"):
        run(recipe)
    assert load_manifest(folder) == before


def test_other_programs_manifests_are_files_like_others(mill, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert len(mill.run(mill.recipe({"web": Read(read=str(data))}, [])).dataset()) == 2
    with pytest.raises(UsageError, match=r"manifest\.json"):
        mill.run(mill.recipe({"web": Read(read=str(data), format="gristmill")}, []))


def test_a_dataset_among_other_files_is_refused(first, mill, tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    shutil.move(first(FORMATS["jsonl"]), both / "old")
    (both / "more.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match=r"more\.jsonl"):
        mill.run(mill.recipe({"web": Read(read=str(both))}, []))
