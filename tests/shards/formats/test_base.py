"""Shards read back in bounded memory, whatever the lines look like."""

import random

import pytest

from gristmill.shards.formats import jsonl
from gristmill.shards.formats.shard_format import open_shard
from gristmill.storage.codecs import compress_frame


@pytest.mark.parametrize("codec", [None, "gzip", "zstd", "bz2", "xz", "lz4"])
def test_lines_of_all_lengths(tmp_path, codec):
    # Shorter and longer than the pieces in which the stream arrives.
    generator = random.Random(1)
    lengths = [0, 1, 5, (1 << 20) - 12, 1 << 20, 3 << 20, 7, *(generator.randrange(2000) for _ in range(2000))]
    lines = [b'{"n":%d,"x":"%s"}\n' % (number, b"x" * length) for number, length in enumerate(lengths)]
    data = b"".join(lines)
    suffix = {None: "", "gzip": ".gz", "zstd": ".zst"}.get(codec, f".{codec}")
    path = tmp_path / f"shard.jsonl{suffix}"
    cut = len(data) // 3
    path.write_bytes(data if codec is None else compress_frame(data[:cut], codec) + compress_frame(data[cut:], codec))
    reader = open_shard(path, "jsonl")
    assert [(row["n"], len(row["x"])) for row in reader.rows()] == list(enumerate(lengths))
    assert reader.count_rows() == len(lengths)
    for number in (0, 2005, 3, 4, 1999, 0):
        assert reader.row(number)["n"] == number


def test_reading_on_does_not_start_again(tmp_path, monkeypatch):
    path = tmp_path / "shard.jsonl"
    path.write_bytes(b"".join(b'{"n":%d,"x":"%s"}\n' % (number, b"x" * 50_000) for number in range(100)))
    reader = open_shard(path, "jsonl")
    read, starts = jsonl.read_line_chunks, []
    monkeypatch.setattr(jsonl, "read_line_chunks", lambda path: starts.append(1) or read(path))
    for number in range(0, 100, 3):
        assert reader.row(number)["n"] == number
    assert len(starts) == 0
    reader.row(0)
    assert len(starts) == 1
