"""From patterns to readers, local and remote; and reading as fast as the bare loop."""

import itertools
import json
import time

import fsspec
import msgspec
import pyarrow as pa
import pytest
import xxhash

from gristmill.core.records import SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import list_source_files, open_reader
from gristmill.storage.codecs import compress_frame
from gristmill.storage.files import read_version
from gristmill.storage.paths import find_files


def test_identity_is_of_source_and_relative_path(tmp_path):
    for name in ("b/2.jsonl", "a/1.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b'{"text": "a"}\n')
    files = list_source_files("web", Read(read="x"), find_files(str(tmp_path)))
    assert [file.relative for file in files] == ["a/1.jsonl", "b/2.jsonl"]
    assert files[0].id == xxhash.xxh3_64_intdigest(b"web\0a/1.jsonl")
    assert list_source_files("other", Read(read="x"), find_files(str(tmp_path)))[0].id != files[0].id


LINES = b"".join(json.dumps({"text": f"text {number}"}).encode() + b"\n" for number in range(200))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_remote_lines(ranges, suffix):
    path = f"memory://lines/x.jsonl{suffix}"
    codec = {".gz": "gzip", ".zst": "zstd"}.get(suffix)
    with fsspec.open(path, "wb") as sink:
        sink.write(compress_frame(LINES, codec) if codec else LINES)
    num_bytes, version = read_version(path)
    file = SourceFile(path, "x", num_bytes, version, 7)
    read = Read(read="x")
    reader = open_reader(read, file, plan_schema(read, [file], keeps_record=True), cell_bytes=500)
    whole = ranges(reader, [0, None])
    assert whole.texts == [f"text {number}" for number in range(200)]
    assert ranges(reader, [0, 2, 3, None]) == whole


@pytest.mark.slow
def test_speed_is_near_that_of_the_bare_loop(new_file):
    words = ["The", "quick", "brown", "fox\njumps", "over", "“the”", "lazy", "dog.\t"]
    texts = (
        " ".join(itertools.islice(itertools.cycle(words), count)) for count in itertools.cycle(range(100, 1500, 7))
    )
    data = b"".join(
        json.dumps({"id": "x", "text": next(texts)}, ensure_ascii=False).encode() + b"\n" for _ in range(6000)
    )
    file = new_file("x.jsonl", data)
    read = Read(read="x")
    schema = plan_schema(read, [file], keeps_record=False)
    decode = msgspec.json.Decoder(msgspec.defstruct("Line", [("text", str)])).decode

    def bare():
        with open(file.path, "rb") as stream:
            while lines := stream.readlines(4 << 20):
                pa.array([decode(line).text for line in lines], pa.large_string())

    def ours():
        for _ in open_reader(read, file, schema).read_cells():
            pass

    def seconds(function):
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    pairs = [(seconds(bare), seconds(ours)) for _ in range(10)]
    assert min(ours for _, ours in pairs) < 2 * min(bare for bare, _ in pairs)
