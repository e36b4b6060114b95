"""Other people's tools open the folder as it is."""

import datasets
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill import steps
from gristmill.shards.derived_files import make_side_files
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.verify import verify
from gristmill.steps.write import Write


@pytest.fixture
def arrow(make_dataset):
    return make_dataset(Write(format="arrow"))


@pytest.fixture
def shards(arrow):
    return [arrow / shard.path for _, _, shard in load_manifest(arrow).shards()]


def _plain(rows):
    return [{name: row[name] for name in ("text", "number")} for row in rows]


def test_datasets_opens_the_folder(arrow, records):
    loaded = datasets.load_from_disk(str(arrow))
    assert list(loaded) == ["train", "validation"]
    assert _plain([*loaded["train"], *loaded["validation"]]) == records
    assert loaded["train"][8]["origin"]["position"] == 8
    assert loaded["train"].split == "train"


def test_a_split_without_shards_does_not_keep_the_others_from_opening(arrow):
    manifest = load_manifest(arrow)
    manifest.splits["validation"]["web"].clear()
    for path, content in make_side_files(manifest).items():
        (arrow / path).write_bytes(content)
    assert list(datasets.load_from_disk(str(arrow))) == ["train"]


def test_datasets_maps_and_the_folder_stays_whole(arrow, records):
    loaded = datasets.load_from_disk(str(arrow))["train"]
    mapped = loaded.map(lambda row: {"length": len(row["text"])})
    assert list(mapped["length"]) == [len(record["text"]) for record in records[:12]]
    assert verify(arrow)


def test_pyarrow_and_polars_open_the_shards(shards, records):
    with_pyarrow = [
        row for path in shards for row in pa.ipc.open_stream(pa.memory_map(str(path))).read_all().to_pylist()
    ]
    assert _plain(with_pyarrow) == records
    with_polars = pl.concat([pl.read_ipc_stream(path) for path in shards])
    assert _plain(with_polars.to_dicts()) == records


def test_parquet_opens_with_pyarrow_and_polars(make_dataset, records):
    folder = make_dataset(Write(format="parquet"))
    paths = [folder / shard.path for _, _, shard in load_manifest(folder).shards()]
    assert _plain([row for path in paths for row in pq.read_table(path).to_pylist()]) == records
    assert _plain(pl.concat([pl.read_parquet(path) for path in paths]).to_dicts()) == records


def test_only_arrow_shards_get_side_files(dataset):
    names = {path.name for path in dataset.rglob("*.json")} - {"report.json"}
    is_arrow = load_manifest(dataset).format == "arrow"
    assert names == (
        {"manifest.json", "dataset_dict.json", "state.json", "dataset_info.json"} if is_arrow else {"manifest.json"}
    )


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_names_of_labels_survive(tmp_path, format):
    """In a column, in lists and in structs; not where sources differ in them."""

    def save(name, labels):
        features = datasets.Features(
            text=datasets.Value("string"),
            label=datasets.ClassLabel(names=labels),
            tags=datasets.Sequence(datasets.ClassLabel(names=["a", "b"])),
            more={"kind": datasets.ClassLabel(names=["x", "y"])},
        )
        rows = [{"text": f"text {n}", "label": n % 2, "tags": [n % 2], "more": {"kind": 1}} for n in range(9)]
        datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / name)
        return features

    def run(*names):
        sources = {name: steps.Read(read=str(tmp_path / name)) for name in names}
        recipe = gm.Recipe(sources=sources, steps=[Write(format=format)], output=str(tmp_path / "out"))
        gm.run(recipe, backend="serial", progress=False, overwrite=True)
        if format == "arrow":
            return datasets.load_from_disk(str(tmp_path / "out"))["train"]
        return datasets.load_dataset(
            "parquet", data_files=str(tmp_path / "out/train/**"), cache_dir=tmp_path / "cache"
        )["train"]

    features = save("first", ["no", "yes"])
    save("same", ["no", "yes"])
    save("other", ["yes", "no"])
    for loaded in (run("first"), run("first", "same")):
        assert {name: loaded.features[name] for name in ("label", "tags", "more")} == {
            name: features[name] for name in ("label", "tags", "more")
        }
        assert loaded[1]["label"] == 1
    loaded = run("first", "other")
    assert loaded.features["label"] == datasets.Value("int64")
    assert loaded.features["tags"] == features["tags"]
