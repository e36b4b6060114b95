"""Other people's tools open the folder as it is."""

import datasets
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.shards.hugging_face import make_side_files
from gristmill.shards.manifests.manifest_file import load_manifest
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
