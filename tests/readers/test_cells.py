"""Every byte of a damaged file is accounted for: in a record that was read, or in a quarantine entry that counts it."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from gristmill_testing.web_archives import http_page, pack_members, warc_record
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import GristmillError
from gristmill.core.records import SourceFile
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.steps import Read

NUM_RECORDS = 120
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def make_texts():
    return [f"record {number} {random.Random(number).randbytes(150).hex()}" for number in range(NUM_RECORDS)]


def make_arrow(new_writer, compression=None):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new_writer(sink, pa.schema({"text": pa.string()}), options=options) as writer:
        for start in range(0, NUM_RECORDS, 10):
            writer.write_batch(pa.record_batch({"text": make_texts()[start : start + 10]}))
    return sink.getvalue()


def make_parquet(**options):
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": make_texts()}), sink, row_group_size=10, **options)
    return sink.getvalue()


def make_jsonl():
    return "".join(json.dumps({"text": text}) + "\n" for text in make_texts()).encode()


def make_csv():
    return ("text\n" + "".join(f'"{text}"\n' for text in make_texts())).encode()


def pack_frames(content, compress):
    """Compress in frames or members of 3,000 bytes, in which reading cannot continue after a damaged one."""
    return b"".join(compress(content[start : start + 3000]) for start in range(0, len(content), 3000))


def make_tar(format):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as archive:
        for number, text in enumerate(make_texts()):
            name = f"{number:04}" + ("x" * 110 if format == tarfile.PAX_FORMAT and number % 3 == 0 else "")
            info = tarfile.TarInfo(name + ".txt")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return sink.getvalue()


WARC_RECORDS = [warc_record("response", http_page(text.encode())) for text in make_texts()]
ARRAY = json.dumps([{"text": text} for text in make_texts()]).encode()
FILES = {
    "a.jsonl": make_jsonl(),
    "a.json": ARRAY,
    "object.json": b'{"version": 1, "data": ' + ARRAY + b', "license": "none"}',
    "a.csv": make_csv(),
    "utf16.csv": make_csv().decode().encode("utf-16"),
    "a.warc": b"".join(WARC_RECORDS),
    "whole.warc.gz": gzip.compress(b"".join(WARC_RECORDS), mtime=0),
    "members.warc.gz": pack_members(WARC_RECORDS),
    "stream.arrow": make_arrow(pa.ipc.new_stream),
    "file.arrow": make_arrow(pa.ipc.new_file),
    "lz4.arrow": make_arrow(pa.ipc.new_file, "lz4"),
    "a.parquet": make_parquet(compression="none", use_dictionary=False),
    "zstd.parquet": make_parquet(compression="zstd"),
    "a.tar": make_tar(tarfile.GNU_FORMAT),
    "pax.tar": make_tar(tarfile.PAX_FORMAT),
    "a.tar.gz": gzip.compress(make_tar(tarfile.USTAR_FORMAT), mtime=0),
    "whole.txt": "\n".join(make_texts()).encode(),
    "lines.txt": "\n".join(make_texts()).encode(),
    **{
        f"{codec}.{name}": compress(content)
        for name, content in (("a.jsonl.gz", make_jsonl()), ("a.csv.gz", make_csv()), ("a.json.gz", ARRAY))
        for codec, compress in (
            ("one", lambda content: gzip.compress(content, mtime=0)),
            ("many", lambda content: pack_frames(content, lambda part: gzip.compress(part, mtime=0))),
        )
    },
    **{
        f"{name}.zst": pack_frames(content, zstandard.ZstdCompressor(write_checksum=True).compress)
        for name, content in (
            ("a.jsonl", make_jsonl()),
            ("a.json", ARRAY),
            ("a.csv", make_csv()),
            ("lines.txt", "\n".join(make_texts()).encode()),
            ("whole.txt", "\n".join(make_texts()).encode()),
            ("a.warc", b"".join(WARC_RECORDS)),
            ("a.tar", make_tar(tarfile.GNU_FORMAT)),
        )
    },
    "a.jsonl.bz2": bz2.compress(make_jsonl()),
    "a.csv.xz": lzma.compress(make_csv()),
}
NUM_TEXT_BYTES = sum(map(len, make_texts()))


def read_damaged(path, content):
    """The number of records that were read, and the quarantine entries; None if the file is refused as a whole."""
    path.write_bytes(content)
    file = SourceFile(str(path), path.name, len(content), "1", 7)
    try:
        options = {"text": "txt"} if ".tar" in path.name else {}
        if path.name == "object.json":
            options = {"field": "data"}
        elif path.name.startswith("lines"):
            options = {"separator": "\n"}
        read = Read(read=str(path), **options)
        reader = open_reader(read, file, plan_schema(read, [file], keeps_record=False), cell_bytes=4000)
        cells = list(reader.read_cells())
    except GristmillError:
        return None
    num_read = sum(cell.batch.num_rows + cell.num_blank + sum(cell.counters.values()) for cell in cells)
    # Damage may make one record of several: then their bytes are in it.
    num_bytes = sum(len(text.as_py().encode()) for cell in cells for text in cell.batch.column("text"))
    num_read = max(num_read, int(num_bytes / NUM_TEXT_BYTES * NUM_RECORDS))
    return num_read, [entry for cell in cells for entry in cell.quarantined]


def check_all_accounted(path, content, damaged, num_damaged):
    outcome = read_damaged(path, damaged)
    if outcome is None:
        return
    num_read, entries = outcome
    record_bytes = len(content) / NUM_RECORDS
    num_counted = sum(max(entry.num_records, entry.num_bytes / record_bytes) for entry in entries)
    # What remains around the damage may be one record: its bytes are in one that was read.
    num_overwritten = num_damaged / record_bytes + 2
    assert num_read + num_counted >= NUM_RECORDS - num_overwritten, entries


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_byte_of_a_damaged_file_is_accounted_for(tmp_path_factory, name, data):
    content = FILES[name]
    start = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.sampled_from([1, 2, 8, 512, 1024, 2000]))
    damage = data.draw(st.sampled_from([bytes(size), b"\xff" * size, END_OF_STREAM, b'"', b"", b"]", b"12x"]))
    if ".csv" in name:
        start = max(start, 3000)  # the first row is no record: it names the columns, and a plan refuses other names
    if name.endswith((".arrow", ".tar")):
        start -= start % 8
    damaged = content[:start] + damage + content[start + size :]
    check_all_accounted(tmp_path_factory.mktemp("read") / name, content, damaged, size)


@pytest.mark.parametrize("name", ["a.json", "object.json"])
@pytest.mark.parametrize("place", [b"}, {", b", {", b" {", b"{", b'"', b"]"])
@pytest.mark.parametrize("damage", [b"]", b"],", b"]}", b"}", b","])
def test_a_damaged_bracket_does_not_end_an_array_quietly(tmp_path, name, place, damage):
    content = FILES[name]
    start = content.index(place, len(content) // 2) if place != b"]" else content.rindex(place)
    check_all_accounted(tmp_path / name, content, content[:start] + damage + content[start + 1 :], len(damage))


@pytest.mark.parametrize("name", ["a.warc", "whole.warc.gz"])
@pytest.mark.parametrize("length", ["12x", "-1", "1", "100000", "1000000000000", ""])
def test_a_wrong_length_costs_only_its_record(tmp_path, name, length):
    records = list(WARC_RECORDS)
    records[40] = records[40].replace(b"Content-Length: ", f"Content-Length: {length} \r\nX: ".encode())
    content = b"".join(records)
    num_read, entries = read_damaged(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    assert num_read == NUM_RECORDS - 1
    [entry] = entries
    start = len(b"".join(records[:40]))
    assert (entry.reason, entry.position, entry.num_bytes) == ("invalid_warc", start, len(records[40]))


def test_a_record_without_a_type_is_damaged(tmp_path):
    """Else it would count as one of the records that are no pages."""
    records = list(WARC_RECORDS)
    records[40] = records[40].replace(b"WARC-Type", b"WARC-Typ\0")
    num_read, [entry] = read_damaged(tmp_path / "a.warc", b"".join(records))
    assert (num_read, entry.reason, entry.num_bytes) == (NUM_RECORDS - 1, "invalid_warc", len(records[40]))


def test_an_end_mark_in_the_middle_of_a_stream_is_damage(tmp_path):
    content = FILES["stream.arrow"]
    place = content.index(b"\xff\xff\xff\xff", len(content) // 2)
    num_read, [entry] = read_damaged(tmp_path / "a.arrow", content[:place] + END_OF_STREAM + content[place:])
    assert num_read < NUM_RECORDS
    assert (entry.position, entry.num_bytes, entry.is_unread) == (num_read, len(content) - place, True)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("damage", [bytes(512), b"\xff" * 512, b"x"], ids=["zeros", "ones", "one byte"])
def test_a_damaged_header_costs_only_its_member(tmp_path, name, damage):
    content = make_tar(tarfile.GNU_FORMAT)
    start = content.index(b"0040.txt")
    damaged = content[:start] + damage + content[start + len(damage) :]
    num_read, [entry] = read_damaged(tmp_path / name, gzip.compress(damaged) if name.endswith("gz") else damaged)
    assert num_read == NUM_RECORDS - 1
    assert (entry.reason, entry.position, entry.is_unread) == ("invalid_tar", 40, True)
    if name == "a.tar":
        assert entry.num_bytes == content.index(b"0041.txt") - start


@pytest.mark.parametrize("tail", [b"what is this?", b"\xff" * 5000, bytes(3 << 20)], ids=["short", "long", "zeros"])
def test_bytes_after_the_end_mark_are_counted(tmp_path, tail):
    content = make_tar(tarfile.GNU_FORMAT)
    num_read, [entry] = read_damaged(tmp_path / "a.tar", content + tail)
    assert num_read == NUM_RECORDS
    assert entry.num_bytes >= len(tail)
