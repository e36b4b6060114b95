"""JSON lines: records as they were read, byte for byte; columns as plain JSON; frames that stock tools read."""

import datetime as dt
import decimal
import json
import shutil
import subprocess

import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import make_origins
from gristmill.shards.formats.shard_format import ShardFormat, open_encoder

TOOLS = {"gzip": "gzip", "zstd": "zstd", "bz2": "bzip2", "xz": "xz", "lz4": "lz4"}


def _batch(records):
    return pa.record_batch(
        {
            "origin": make_origins(1, pa.array(range(len(records)))),
            "text": pa.array(["changed by nobody"] * len(records), pa.large_string()),
            "record": pa.array(records, pa.large_binary()),
        }
    )


def _block(batch, compression=None):
    return open_encoder(ShardFormat.of("jsonl", compression), batch.schema).block(batch)


def test_records_are_written_as_they_were_read():
    records = [b'{"b": 1,  "a":"\\u00e9"}', '{"a":"é","a":1e400}'.encode(), b"{ }"]
    assert _block(_batch(records)) == b"".join(record + b"\n" for record in records)
    assert _block(_batch(records).slice(1, 1)) == records[1] + b"\n"


def test_a_record_of_several_lines_becomes_one():
    # As a `.json` member of a tar may be.
    records = [b'{"a": 1}', b'{\n  "a": "x\\ny",\n  "b": [\n1]\n}', b'{"c":2}']
    lines = _block(_batch(records)).split(b"\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"a": 1}, {"a": "x\ny", "b": [1]}, {"c": 2}]
    assert lines[0] == records[0]


def test_a_missing_record_is_refused():
    with pytest.raises(UsageError, match="record"):
        _block(_batch([b"{}", None]))


def test_columns_of_all_kinds_become_json():
    columns = {
        "ns": pa.array([1], pa.timestamp("ns")),
        "zone": pa.array([0], pa.timestamp("s", "Europe/Berlin")),
        "date": pa.array([dt.date(2020, 2, 29)]),
        "decimal": pa.array([decimal.Decimal("1.50")]),
        "bytes": pa.array([b"\xff\x00"]),
        "half": pa.array([1.5], pa.float16()),
        "nan": pa.array([float("nan")]),
        "big": pa.array([2**64 - 1], pa.uint64()),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
        "nested": pa.array([[{"when": 1}]], pa.list_(pa.struct([("when", pa.timestamp("ns"))]))),
        "word": pa.array(["w"]).dictionary_encode(),
        "none": pa.nulls(1),
    }
    batch = pa.record_batch({"origin": make_origins(1, pa.array([0])), **columns})
    assert json.loads(_block(batch)) == {
        "ns": "1970-01-01 00:00:00.000000001",
        "zone": "1970-01-01 01:00:00+0100",
        "date": "2020-02-29",
        "decimal": "1.50",
        "bytes": "/wA=",
        "half": 1.5,
        "nan": None,
        "big": 2**64 - 1,
        "map": [["k", 1]],
        "nested": [{"when": "1970-01-01 00:00:00.000000001"}],
        "word": "w",
        "none": None,
    }


def test_only_origins_left_still_counts_the_records():
    batch = pa.record_batch({"origin": make_origins(1, pa.array([0, 1]))})
    assert _block(batch) == b"{}\n{}\n"


@pytest.mark.parametrize("codec", TOOLS)
@pytest.mark.parametrize("num_blocks", [0, 1, 3])
def test_stock_tools_read_the_frames_as_one_stream(tmp_path, codec, num_blocks):
    if shutil.which(TOOLS[codec]) is None:
        pytest.skip(f"{TOOLS[codec]} is not installed")
    batch = _batch([b'{"a":1}', b'{"a":2}'])
    encoder = open_encoder(ShardFormat.of("jsonl", codec), batch.schema)
    path = tmp_path / f"shard{encoder.suffix}"
    path.write_bytes(encoder.header() + encoder.block(batch) * num_blocks + encoder.footer())
    run = subprocess.run([TOOLS[codec], "-dc", path], capture_output=True, check=True)
    assert run.stdout == b'{"a":1}\n{"a":2}\n' * num_blocks
    assert subprocess.run([TOOLS[codec], "-t", path], capture_output=True).returncode == 0
