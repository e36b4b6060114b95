"""WebDataset output as `webdataset` reads it: samples a shard, names, keys and bytes are those that were asked for."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Filter, Read, Shuffle, Write

webdataset = pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open

IMAGES = [bytes([n % 256, 0xFF, 0xFE]) * (n % 7) if n % 5 else None for n in range(250)]


@pytest.fixture
def pictures(tmp_path):
    columns = {
        "text": [f"picture {n}" for n in range(250)],
        "jpg": IMAGES,
        "n": list(range(250)),
        "Odd/Name": [b"\xff"] * 250,
        "__key__": [f"dir.x/{n:04d}" for n in range(250)],
    }
    pq.write_table(pa.table(columns), tmp_path / "p.parquet", row_group_size=40)
    return {"web": Read(read=f"{tmp_path}/p.parquet")}


def samples(folder):
    for shard in sorted(folder.rglob("*.tar")):
        yield from webdataset.WebDataset(str(shard), shardshuffle=False, empty_check=False)


def sizes(folder):
    return [shard.rows for _, _, shard in open_dataset(folder).manifest.shards()]


def test_webdataset_gives_back_keys_bytes_and_columns(mill, pictures):
    mill.run(mill.recipe(pictures, [Write(format="webdataset")]))
    found = list(samples(mill.output))
    assert [sample["__key__"] for sample in found] == [f"dir.x/{n:04d}" for n in range(250)]
    assert [sample.get("jpg") for sample in found] == IMAGES
    assert [sample["txt"].decode() for sample in found] == [f"picture {n}" for n in range(250)]
    assert json.loads(found[7]["json"]) == {"n": 7, "Odd/Name": "/w=="}


def test_our_own_reader_gives_back_the_same(mill, pictures):
    mill.run(mill.recipe(pictures, [Write(format="webdataset")]))
    dataset = open_dataset(mill.output)
    for row in (249, 3, 10, 0):
        expected = {"text": f"picture {row}", "n": row, "Odd/Name": "/w==", "__key__": f"dir.x/{row:04d}"}
        assert dataset[row] == expected | {"jpg": IMAGES[row]}


@pytest.mark.parametrize("steps", [[], [Shuffle()]], ids=["", "shuffle"])
def test_samples_a_shard_whatever_the_tasks(mill, pictures, steps):
    write = Write(format="webdataset", max_shard_samples=30, shard_name="{source}-{split}-{number:03d}")
    found = []
    for slice_bytes, options in [(1 << 26, {}), (1, {}), (500, {"backend": "threads", "workers": 3})]:
        recipe = mill.recipe(pictures, [*steps, write], slice_bytes=slice_bytes)
        files = mill.fresh_files(recipe, **options)
        found.append(
            {name: data for name, data in files.items() if name not in ("manifest.json", "report.json", "report.html")}
        )
        assert sizes(mill.output) == [30] * 8 + [10]
    assert found[1] == found[0] == found[2]
    assert [path.name for path in sorted(mill.output.rglob("*.tar"))] == [f"web-train-{n:03d}.tar" for n in range(9)]
    assert len(list(samples(mill.output))) == 250


def test_keys_of_tars_are_kept_through_filters(mill, tmp_path):
    for name, first in (("a", 0), ("b", 1)):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            for number in range(first, 40, 2):
                for extension, content in (("txt", f"{number}"), ("png", "\x89"), ("cls", "1")):
                    info = tarfile.TarInfo(f"x/{number:05d}.{extension}")
                    info.size = len(content.encode("latin-1"))
                    archive.addfile(info, io.BytesIO(content.encode("latin-1")))
    read = Read(read=f"{tmp_path}/*.tar", text="txt")
    mill.run(
        mill.recipe(
            {"web": read}, [Filter(call=lambda record: int(record["text"]) % 3 == 0), Write(format="webdataset")]
        )
    )
    expected = [f"x/{n:05d}" for n in (*range(0, 40, 6), *range(3, 40, 6))]
    found = list(samples(mill.output))
    assert [sample["__key__"] for sample in found] == expected
    assert {sample["png"] for sample in found} == {b"\x89"}


def test_neighbours_with_one_key_stay_two_samples(mill, tmp_path):
    columns = {"text": ["a", "b", "c", "d", "e"], "__key__": ["k", "k", "k", None, "a.b"]}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet", row_group_size=1)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/p.parquet")}, [Write(format="webdataset")])
    mill.run(recipe)
    assert [sample["txt"] for sample in samples(mill.output)] == [b"a", b"b", b"c", b"d", b"e"]
    keys = [sample["__key__"] for sample in samples(mill.output)]
    assert keys[0] == keys[2] == "k"
    assert len(set(keys)) == 4
    assert [record.get("__key__") for record in open_dataset(mill.output)] == columns["__key__"]


@pytest.mark.parametrize(
    "key", ["", ".", "/a", "../a", "a/../b", "a\0b", "x" * 97, "__meta__", "é" * 60, "d/" * 150 + "k"]
)
def test_a_key_that_cannot_be_used_stays_in_the_record(mill, tmp_path, key):
    pq.write_table(pa.table({"text": ["a", "b"], "__key__": [key, "good"]}), tmp_path / "p.parquet")
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/p.parquet")}, [Write(format="webdataset")]))
    found = [(sample["__key__"], sample["txt"]) for sample in samples(mill.output)]
    assert found[0][0] != key
    assert found[0][1] == b"a"
    assert found[1] == ("good", b"b")
    assert [record["__key__"] for record in open_dataset(mill.output)] == [key, "good"]
    first = mill.output.rename(tmp_path / "first")
    mill.run(mill.recipe({"old": Read(read=str(first))}, [Write(format="jsonl")]))
    assert [record["__key__"] for record in open_dataset(mill.output)] == [key, "good"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [([7, 8], [7, 8]), ([b"\xff", None], ["/w==", None]), (["0123456789abcdef-000000000001-0"] * 2, None)],
)
def test_keys_that_are_no_text_or_look_like_origins_are_not_lost(mill, tmp_path, keys, expected):
    pq.write_table(pa.table({"text": ["a", "b"], "__key__": keys}), tmp_path / "p.parquet")
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/p.parquet")}, [Write(format="webdataset")]))
    assert len({sample["__key__"] for sample in samples(mill.output)}) == 2
    assert [record.get("__key__") for record in open_dataset(mill.output)] == (expected or keys)


@pytest.mark.parametrize("key", ["x" * 95, "d/" * 70 + "k", "a.b/c", "é" * 40])
def test_long_keys_are_kept(mill, tmp_path, key):
    pq.write_table(pa.table({"text": ["a"], "__key__": [key]}), tmp_path / "p.parquet")
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/p.parquet")}, [Write(format="webdataset")]))
    assert [sample["__key__"] for sample in samples(mill.output)] == [key]
    assert open_dataset(mill.output)[0] == {"text": "a", "__key__": key}


def test_a_dataset_of_pictures_as_a_source_loses_nothing(mill, pictures, tmp_path):
    mill.run(mill.recipe(pictures, [Write(format="webdataset")]))
    first = mill.output.rename(tmp_path / "first")
    mill.run(mill.recipe({"old": Read(read=str(first))}, [Write(format="jsonl")]))
    record = open_dataset(mill.output)[3]
    assert record["__key__"] == "dir.x/0003"
    assert record["n"] == 3
    assert record["jpg"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "jsonl", "max_shard_samples": 5},
        {"format": "webdataset", "max_shard_samples": 0},
        {"shard_name": "shard"},
        {"shard_name": "../{number}"},
        {"shard_name": "{number}/x"},
        {"shard_name": ".{number}"},
        {"shard_name": "{numbr}"},
        {"shard_name": "{number"},
        {"shard_name": "{number.__class__}"},
        {"shard_name": "{number.__class__}-{number}"},
        {"shard_name": "{number:010000000d}"},
        {"shard_name": "{number:01d}" + "x" * 200},
    ],
)
def test_what_cannot_be(wrong):
    with pytest.raises(UsageError):
        Write(**wrong)
