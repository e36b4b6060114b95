"""Damaged shards whose checksums fit end in rows or in an error of ours: never in a crash, never in a raw exception."""

import json
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest
from gristmill_testing import resealing

from gristmill.core.errors import DamagedDatasetError
from gristmill.shards.dataset import open_dataset
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.verify import verify
from gristmill.stream import Stream


def run_program(*arguments):
    """In a process of its own: what is wrong may end it. Gives what it has counted."""
    command = [sys.executable, resealing.__file__, *map(str, arguments)]
    environment = {"PYTHONPATH": str(resealing.__file__).rsplit("/", 2)[0], "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    *_, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"exit {done.returncode} at {last}\n{done.stderr}"
    return json.loads(last)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_damage(tmp_path, seed):
    found = run_program("fuzz", tmp_path, seed, 40)
    assert found["refused"] > found["cases"] / 4


@pytest.mark.full
@pytest.mark.parametrize("kind", ["packed_chats", "ragged", "arrow"])
def test_every_word_of_a_header(tmp_path, kind):
    found = run_program("sweep", tmp_path, kind, 7)
    assert found["refused"] > found["cases"] / 4


@pytest.fixture(params=["packed_chats", "chats"])
def chats(request, tmp_path):
    return resealing.make(tmp_path / "out", request.param)


@pytest.mark.parametrize("column", ["input_ids", "lengths", "loss_mask"])
def test_a_buffer_shorter_than_its_rows(chats, column):
    """As its header declares it: the rows would be read from what lies behind."""
    [(_, _, shard)] = load_manifest(chats).shards()
    content = (chats / shard.path).read_bytes()
    start, size, _ = next(iter(resealing.messages(content)))
    for word in buffer_words(content, start, size, column):
        content = resealing.put(content, word, 0, 8)
    (chats / shard.path).write_bytes(content)
    resealing.reseal(chats, shard.path)
    [problem] = verify(chats).problems
    assert (problem.path, problem.kind) == (shard.path, "unreadable")
    with pytest.raises(DamagedDatasetError, match="shard-00000"):
        list(open_dataset(chats))
    with pytest.raises(DamagedDatasetError, match="shard-00000"):
        Stream(chats).rows(0, 4)


def buffer_words(content, start, size, column):
    """Where the header says how long the values of a column are: buffers stand in order as (offset, length)."""
    whole = pa.py_buffer(content)
    batch = next(iter(pa.ipc.open_stream(pa.BufferReader(whole))))
    values = batch.column(column).buffers()[-1]
    body = start + size
    offset = values.address - whole.address - body
    pairs = [(place, *(int.from_bytes(content[place + at : place + at + 8], "little") for at in (0, 8)))
             for place in range(start, body - 15, 8)]  # fmt: skip
    words = [place + 8 for place, at, length in pairs if (at, length) == (offset, values.size)]
    assert words
    return words


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["splits"]["train"]["web"][0].update(rows=-1),
        lambda plain: plain["splits"]["train"]["web"][0].update(tokens=-5),
        lambda plain: plain["splits"]["train"]["web"][0].update(bytes=2**60),
        lambda plain: plain.update(row_length=0),
        lambda plain: plain.update(row_length=-3),
        lambda plain: plain["files"].update(zz=next(iter(plain["files"].values()))),
    ],
    ids=["rows", "tokens", "bytes", "row_length_0", "row_length_-3", "file_key"],
)
def test_counts_that_cannot_be(chats, change):
    plain = msgspec.to_builtins(load_manifest(chats))
    change(plain)
    (chats / "manifest.json").write_text(json.dumps(plain))
    for read in (verify, open_dataset, Stream):
        with pytest.raises(DamagedDatasetError, match=r"manifest\.json"):
            read(chats)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ragged", "packed", "arrow"])
@pytest.mark.parametrize("other", ["ragged", "packed_chats", "arrow", "parquet"])
def test_a_schema_of_another_dataset(tmp_path, kind, other):
    """The manifest describes other columns than its shards have."""
    folder = resealing.make(tmp_path / "one", kind)
    schema = msgspec.to_builtins(load_manifest(resealing.make(tmp_path / "two", other)))["schema"]
    plain = msgspec.to_builtins(load_manifest(folder))
    if plain["schema"] == schema:
        pytest.skip("the same columns")
    resealing.seal(folder, plain | {"schema": schema})
    assert not verify(folder)
    with pytest.raises(DamagedDatasetError):
        list(open_dataset(folder))
    if kind != "arrow":
        with pytest.raises(DamagedDatasetError):
            Stream(folder).rows(0, 2)


@pytest.mark.parametrize("size", [b"-0000000001", b"77777777777", b"\xff" * 11, b"\x80\0\0\0\x7f" + b"\xff" * 6])
def test_a_member_of_a_size_that_cannot_be(tmp_path, size):
    """Of a tar: neither is all of the file read at once, nor memory asked for that nobody has."""
    folder = resealing.make(tmp_path / "out", "webdataset")
    [(_, _, shard)] = load_manifest(folder).shards()
    content = (folder / shard.path).read_bytes()
    header = bytearray(content[:512])
    header[124:135] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (folder / shard.path).write_bytes(bytes(header) + content[512:])
    resealing.reseal(folder, shard.path)
    assert [problem.kind for problem in verify(folder).problems] == ["unreadable"]
    with pytest.raises(DamagedDatasetError, match="shard-00000"):
        list(open_dataset(folder))
