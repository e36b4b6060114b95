"""Peak memory stays that of a cell, whatever the file: measured in processes of their own."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.storage.codecs import compress_frame

READ = """
import json, os, sys
from gristmill.core.records import SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_for_unpacking, open_reader
path, options, unpacks = sys.argv[1], json.loads(sys.argv[2]), len(sys.argv) > 3
file, read = SourceFile(path, "x", os.path.getsize(path), "", 7), Read(read="x", **options)
if unpacks:
    count = sum(len(data) for _, data in open_for_unpacking(read, file)[0].pieces())
    reasons = []
else:
    count, reasons = 0, []
    for cell in open_reader(read, file, plan_schema(read, [file], keeps_record=False)).read_cells():
        count += cell.batch.num_rows
        reasons += [record.reason for record in cell.quarantined]
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) >> 10
print(json.dumps([count, reasons, peak]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")]


def read_in_a_process(path, *arguments, **options):
    run = subprocess.run(
        [sys.executable, "-c", READ, str(path), json.dumps(options), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.full
def test_a_line_of_a_gibibyte(tmp_path):
    path = tmp_path / "x.jsonl"
    with path.open("wb") as sink:
        sink.write(b'{"text": "before"}\n{"text": "')
        for _ in range(1024):
            sink.write(b"x" * (1 << 20))
        sink.write(b'"}\n{"text": "after"}\n')
    count, reasons, peak = read_in_a_process(path)
    assert (count, reasons) == (2, ["too_large"])
    assert peak < 400


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "head", "record", "tail"),
    [
        ("x.json", b"[", b'{"text": "%b"},', b'{"text": "last"}]'),
        ("x.json", b'{"version": 1, "data": [', b'{"text": "%b"},', b'{"text": "last"}], "more": []}'),
        ("x.csv", b"id,text\n", b'1,"a, %b"\n', b"2,last\n"),
    ],
    ids=["array", "object", "csv"],
)
def test_a_file_that_is_scanned(tmp_path, name, head, record, tail):
    path = tmp_path / name
    with path.open("wb") as sink:
        sink.write(head)
        for _ in range(512):
            sink.write(record % (b"x" * (1 << 20)))
        sink.write(tail)
    count, reasons, peak = read_in_a_process(path)
    assert (count, reasons) == (513, [])
    assert peak < 400


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "head"), [("x.json", b'[{"text": "before"}, {"text": "'), ("x.csv", b'id,text\n1,"before"\n2,"')]
)
def test_a_quote_that_is_never_closed(tmp_path, name, head):
    path = tmp_path / name
    with path.open("wb") as sink:
        sink.write(head)
        for _ in range(512):
            sink.write(b"x" * (1 << 20))
    count, reasons, peak = read_in_a_process(path)
    assert (count, len(reasons)) == (1, 1)
    assert peak < 400


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_small_file_that_unpacks_to_a_gibibyte(tmp_path, suffix):
    path = tmp_path / f"x.jsonl.{suffix}"
    frame = compress_frame(bytes(64 << 20), {"gz": "gzip", "zst": "zstd"}[suffix])
    path.write_bytes(frame * 16)
    count, reasons, peak = read_in_a_process(path)
    assert (count, reasons) == (0, ["too_large"])
    assert peak < 400
    count, _, peak = read_in_a_process(path, "unpack")
    assert count == 1 << 30
    assert peak < 400


def test_one_huge_row_group(tmp_path):
    path = tmp_path / "x.parquet"
    num_rows, width = 400_000, 1500
    letters = np.random.default_rng(0).integers(97, 123, num_rows * width, np.uint8)
    offsets = np.arange(num_rows + 1) * width
    texts = pa.LargeStringArray.from_buffers(num_rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", use_dictionary=False)
    assert pq.ParquetFile(path).num_row_groups == 1
    count, reasons, peak = read_in_a_process(path)
    assert (count, reasons) == (num_rows, [])
    assert peak < 400


@pytest.mark.full
@pytest.mark.parametrize("rows_a_batch", [1000, 400_000])
def test_large_arrow_streams(tmp_path, rows_a_batch):
    path = tmp_path / "x.arrow"
    schema = pa.schema([("text", pa.large_string())])
    batch = pa.record_batch([["x" * 1500] * rows_a_batch], schema=schema)
    with pa.ipc.new_stream(path, schema) as writer:
        for _ in range(400_000 // rows_a_batch):
            writer.write_batch(batch)
    count, _, peak = read_in_a_process(path)
    assert count == 400_000
    assert peak < 400
