"""The step refuses what it cannot write, before any work."""

import msgspec
import pytest

from gristmill.core.errors import UsageError
from gristmill.steps.write import Write


def test_names_in_recipes():
    assert Write().name == "write"
    assert msgspec.convert({"type": "write", "format": "jsonl"}, Write) == Write(format="jsonl")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format": "json"}, "jsonl"),
        ({"format": "jsonl", "compression": "gz"}, "gzip"),
        ({"format": "arrow", "compression": "zstd"}, "arrow"),
        ({"format": "webdataset", "compression": "gzip"}, "webdataset"),
        ({"max_shard_bytes": 0}, "at least 1"),
    ],
)
def test_wrong_use(fields, words):
    with pytest.raises(UsageError, match=words):
        Write(**fields)


def test_suffixes():
    suffixes = {
        Write(format="jsonl", compression=codec).suffix for codec in ("none", "gzip", "zstd", "bz2", "xz", "lz4")
    }
    assert suffixes == {".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".jsonl.xz", ".jsonl.lz4"}
    assert [Write(format=name).suffix for name in ("arrow", "parquet", "webdataset")] == [".arrow", ".parquet", ".tar"]
    assert Write(format="parquet").codec == "zstd"
    assert Write(format="jsonl").codec is None
