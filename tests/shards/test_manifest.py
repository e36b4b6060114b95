"""The manifest: the same file for the same dataset, and a hash that means the data."""

import msgspec
import pyarrow as pa
import pytest

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.manifest import dataset_hash
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.stored_files import Schema


@pytest.fixture
def manifest(dataset):
    return load_manifest(dataset)


def test_it_comes_back_as_it_was(dataset, manifest):
    assert b"".join(dump_manifest(manifest)) == (dataset / "manifest.json").read_bytes()
    assert manifest.is_sealed


def test_the_same_dataset_has_the_same_manifest(make_dataset, write):
    assert (make_dataset(write, "a") / "manifest.json").read_bytes() == (
        make_dataset(write, "b") / "manifest.json"
    ).read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["splits"]["train"]["web"].reverse(),
        lambda plain: plain["splits"].update(test=plain["splits"].pop("validation")),
        lambda plain: plain["splits"]["train"].update(more=plain["splits"]["train"].pop("books")),
        lambda plain: plain["splits"]["train"]["web"][0].update(xxh3="0" * 16),
        lambda plain: plain["schema"]["columns"].update(number="int32"),
    ],
    ids=["order", "split", "source", "content", "schema"],
)
def test_the_hash_covers_what_the_data_is(manifest, change):
    assert dataset_hash(_changed(manifest, change)) != manifest.dataset_hash


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["splits"]["train"]["web"][0].update(path="elsewhere", tasks=["1"]),
        lambda plain: plain.update(versions={"gristmill": "9"}, recipe={}, files={}),
    ],
    ids=["paths", "versions"],
)
def test_the_hash_leaves_out_where_and_how(manifest, change):
    changed = _changed(manifest, change)
    assert dataset_hash(changed) == manifest.dataset_hash
    assert not changed.is_sealed


def test_schema_survives(manifest):
    schema = pa.schema([("a", pa.list_(pa.struct([("b", pa.timestamp("ns", "UTC"))]))), ("c", pa.large_string())])
    assert Schema.of(schema).to_arrow().equals(schema)


def test_another_format_version_is_refused(dataset):
    path = dataset / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format_version": 3', b'"format_version": 4'))
    with pytest.raises(UsageError, match=r"version 4.*: upgrade Gristmill"):
        load_manifest(dataset)


@pytest.mark.parametrize("content", ["", '{"format_version": 3', '{"format_version": 3, "kind": 3}'])
def test_a_damaged_manifest_is_named(dataset, content):
    (dataset / "manifest.json").write_text(content)
    with pytest.raises(DamagedDatasetError, match=r"manifest\.json"):
        load_manifest(dataset)


def _changed(manifest, change):
    plain = msgspec.to_builtins(manifest)
    change(plain)
    return msgspec.convert(plain, type(manifest))
