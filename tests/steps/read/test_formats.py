"""Formats from names."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.steps.read import file_format

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
