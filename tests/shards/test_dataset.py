"""A dataset opens, in every format, as the records that were written; damage is an error that names the file."""

import pickle

import pyarrow as pa
import pytest

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.dataset import Origin, open_dataset


def test_records_by_number_and_in_order(dataset, records):
    ds = open_dataset(dataset)
    assert len(ds) == len(records)
    assert list(ds) == records
    assert [ds[number] for number in range(len(ds))] == records
    assert [ds[number] for number in range(-len(ds), 0)] == records
    assert [ds[number] for number in reversed(range(len(ds)))] == records[::-1]


def test_a_number_outside_is_an_index_error(dataset, records):
    ds = open_dataset(dataset)
    for number in (len(records), -len(records) - 1):
        with pytest.raises(IndexError, match=str(number)):
            ds[number]
    with pytest.raises(TypeError):
        ds["text"]


def test_splits(dataset, records):
    ds = open_dataset(dataset)
    assert ds.splits == ["train", "validation"]
    assert ds.sources == ["web", "books"]
    train, validation = ds.split("train"), ds.split("validation")
    assert list(train) + list(validation) == records
    assert validation[-1] == records[-1]
    assert validation.sources == ["web"]
    with pytest.raises(UsageError, match="validation"):
        ds.split("valdation")


def test_origins(dataset):
    ds = open_dataset(dataset)
    assert ds.origins(8) == [Origin("books", "/data/books.jsonl", 8, 0)]
    assert ds.origins(-1) == [Origin("web", "/data/web.jsonl", 13, 0)]
    assert ds.split("validation").origins(0) == ds.origins(12)


def test_schema_and_quarantine(dataset):
    ds = open_dataset(dataset)
    assert ds.schema.field("text").type == pa.large_string()
    assert ds.schema.field("number").type == pa.int64()
    assert [entry["reason"] for entry in ds.quarantine()] == ["invalid_json"]


def test_it_can_be_sent_to_another_process(dataset, records):
    ds = open_dataset(dataset)
    ds[5]
    assert list(pickle.loads(pickle.dumps(ds))) == records


def test_more_shards_than_stay_open(make_dataset, write, records, monkeypatch):
    monkeypatch.setattr("gristmill.shards.dataset._MAX_OPEN_SHARDS", 1)
    ds = open_dataset(make_dataset(write))
    assert [ds[number] for number in (0, 13, 1, 12, 2)] == [records[number] for number in (0, 13, 1, 12, 2)]
    assert ds.origins(3)[0].position == 3


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_damage_names_the_shard(dataset, damage):
    ds = open_dataset(dataset)
    shard = ds.manifest.splits["train"]["books"][0]
    path = dataset / shard.path
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "truncated" else b"\xff" * len(data))
    with pytest.raises(DamagedDatasetError, match=shard.path):
        ds[7]
    with pytest.raises(DamagedDatasetError, match=shard.path):
        list(ds)
    assert ds[0]
    assert ds[13]


def test_fewer_records_than_promised_are_noticed(make_dataset, write):
    folder = make_dataset(write)
    ds = open_dataset(folder)
    shard = ds.manifest.splits["train"]["books"][0]
    other = ds.manifest.splits["validation"]["web"][0]
    # A whole shard with fewer records, in place of the one that the manifest means.
    (folder / shard.path).write_bytes((folder / other.path).read_bytes().ljust(shard.bytes, b"\0"))
    with pytest.raises(DamagedDatasetError, match=shard.path):
        list(ds)
    with pytest.raises(DamagedDatasetError, match=shard.path):
        ds[11]


def test_a_folder_that_is_no_dataset_says_what_it_is(tmp_path):
    cases = {"nothing": "no folder", "file": "is a file", "empty": "not a dataset", "unfinished": "unfinished"}
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished" / ".gristmill").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"name": "an app"}')
    (tmp_path / "hugging_face").mkdir()
    (tmp_path / "hugging_face" / "dataset_dict.json").write_text("{}")
    cases |= {"other": "not written by Gristmill", "hugging_face": "Hugging Face"}
    for name, words in cases.items():
        with pytest.raises(UsageError, match=words):
            open_dataset(tmp_path / name)
    with pytest.raises(UsageError, match="no folder"):
        open_dataset("memory://nothing/here")
