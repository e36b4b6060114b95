"""WARC records: damage costs only the member that has it."""

import gzip

import pytest
from gristmill_testing.web_archives import crawl, http_page, pack_members, warc_record
from tests.readers.test_web_archives import read_all

from gristmill.core.records import SourceFile
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.steps import Read


def open_file(path, *, cell_bytes=4 << 20, **keys):
    read = Read(read=str(path), **keys)
    file = SourceFile(str(path), path.name, path.stat().st_size, "1", 7)
    return open_reader(read, file, plan_schema(read, [file], keeps_record=True), cell_bytes=cell_bytes)


@pytest.fixture(scope="module")
def records():
    return crawl(40)


def test_a_damaged_member_costs_only_itself(tmp_path, records):
    members = [gzip.compress(record, mtime=0) for record in records]
    broken = bytearray(members[5])  # the second response
    broken[len(broken) // 2 :] = bytes(len(broken) - len(broken) // 2)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join([*members[:5], bytes(broken), *members[6:]]))
    rows, bad, _ = read_all(open_file(path))
    assert len(rows) == 39
    assert bad == [(sum(map(len, members[:5])), "corrupt_stream")]


@pytest.mark.parametrize("cell_bytes", [300, 1000, 4 << 20])
@pytest.mark.parametrize("number", [0, 5, 120])
def test_a_member_that_is_damaged_from_its_beginning_is_quarantined(tmp_path, records, number, cell_bytes):
    members = [gzip.compress(record, mtime=0) for record in records]
    offset = sum(map(len, members[:number]))
    members[number] = members[number][:10] + b"\xff" * 20 + members[number][30:]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members) + bytes(512))  # zeros are padding, not damage
    rows, bad, counters = read_all(open_file(path, cell_bytes=cell_bytes))
    assert bad == [(offset, "corrupt_stream")]
    assert len(rows) + sum(counters.values()) + 1 == len(records)


def test_a_wrong_checksum_is_damage(tmp_path, records):
    members = [gzip.compress(record, mtime=0) for record in records[:6]]
    members[2] = members[2][:-8] + bytes(4) + members[2][-4:]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members))
    rows, bad, _ = read_all(open_file(path))
    assert (len(rows), [reason for _, reason in bad]) == (1, ["corrupt_stream"])


@pytest.mark.parametrize(
    ("form", "reason"), [("members", "truncated_stream"), ("whole", "truncated_stream"), ("plain", "truncated_record")]
)
def test_a_truncated_file(tmp_path, form, reason):
    records = crawl(3)[:-1]
    path = tmp_path / ("a.warc" if form == "plain" else "a.warc.gz")
    content = {"members": pack_members(records), "whole": gzip.compress(b"".join(records)), "plain": b"".join(records)}
    path.write_bytes(content[form][:-9])
    rows, bad, _ = read_all(open_file(path))
    assert [each for _, each in bad] == [reason]
    assert len(rows) == 2 or (len(rows) == 3 and form == "whole")  # only the checksum may be missing


def test_records_that_are_too_large_are_quarantined(tmp_path):
    path = tmp_path / "a.warc.gz"
    small = warc_record("response", http_page(b"<p>small"))
    path.write_bytes(pack_members([warc_record("response", http_page(b"x" * 5000)), small]))
    rows, bad, _ = read_all(open_file(path, max_record_bytes=1000))
    assert ([row["text"] for row in rows], [reason for _, reason in bad]) == (["<p>small"], ["too_large"])
