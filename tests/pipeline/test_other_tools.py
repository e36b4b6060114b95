"""What a run leaves opens as it is: with this library and with those of others."""

import json
import tarfile

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.shards.dataset import open_dataset
from gristmill.steps import Read, Split, Write


@pytest.fixture
def made(mill, tmp_path, request):
    for number in range(3):
        lines = [json.dumps({"id": f"{number}-{n}", "text": f"text {n} of {number}"}) for n in range(40)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    read = Read(read=f"{tmp_path}/*.jsonl", columns=["id"])
    mill.run(mill.recipe({"web": read}, [Split(validation=0.2), Write(format=request.param)]))
    return mill.output


EXPECTED = {f"{number}-{n}": f"text {n} of {number}" for number in range(3) for n in range(40)}


@pytest.mark.parametrize("made", ["jsonl", "parquet", "arrow", "webdataset"], indirect=True)
def test_this_library(made):
    dataset = open_dataset(made)
    assert len(dataset) == 120
    assert {record["id"]: record["text"] for record in dataset} == EXPECTED
    assert dataset[-1]["text"] == list(dataset)[-1]["text"]
    [origin] = dataset.origins(0)
    assert origin.source == "web"
    with open(origin.path, "rb") as file:
        file.seek(origin.position)
        assert json.loads(file.readline())["text"] == dataset[0]["text"]
    assert dataset.verify()


@pytest.mark.parametrize("made", ["arrow"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_datasets(made):
    import datasets

    loaded = datasets.load_from_disk(str(made))
    assert set(loaded) == {"train", "validation"}
    rows = [row for split in loaded.values() for row in split]
    assert {row["id"]: row["text"] for row in rows} == EXPECTED


@pytest.mark.parametrize("made", ["jsonl", "parquet", "arrow", "webdataset"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_load_dataset_reads_the_card(made, tmp_path):
    import datasets

    loaded = datasets.load_dataset(str(made), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {
        name: len(open_dataset(made).split(name)) for name in ("train", "validation")
    }
    rows = [row for split in loaded.values() for row in split]
    if "txt" in rows[0]:  # the members of a tar are columns
        rows = [{"text": row["txt"], **row["json"]} for row in rows]
    assert {row["id"]: row["text"] for row in rows} == EXPECTED


@pytest.mark.parametrize("made", ["arrow"], indirect=True)
def test_arrow_and_polars(made):
    found = {}
    for path in made.glob("*/*/*.arrow"):
        if {"origins", "index"} & {*path.parts}:
            continue
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_stream(file).read_all()
        frame = pl.read_ipc_stream(path)
        assert frame["text"].to_list() == table["text"].to_pylist()
        found |= dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    assert found == EXPECTED


@pytest.mark.parametrize("made", ["parquet"], indirect=True)
def test_parquet(made):
    tables = [pq.read_table(path) for path in made.glob("*/*/*.parquet")]
    frame = pl.read_parquet(f"{made}/*/*/*.parquet")
    rows = [row for table in tables for row in table.to_pylist()]
    assert {row["id"]: row["text"] for row in rows} == EXPECTED
    assert dict(zip(frame["id"], frame["text"], strict=True)) == EXPECTED


@pytest.mark.parametrize("made", ["webdataset"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_webdataset(made):
    import webdataset

    tars = sorted(str(path) for path in made.glob("*/*/*.tar"))
    samples = list(webdataset.WebDataset(tars, shardshuffle=False))
    found = {json.loads(sample["json"])["id"]: sample["txt"].decode() for sample in samples}
    assert found == EXPECTED
    with tarfile.open(tars[0]) as tar:
        assert all(member.mtime == 0 and member.isfile() for member in tar)
