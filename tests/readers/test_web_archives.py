"""WARC files: every record once whatever the cells, damage costs only itself, and FastWARC sees the same pages."""

import gzip
import io
import zlib

import pytest
import zstandard
from gristmill_testing.web_archives import crawl, http_page, pack_members, warc_record
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import SourceFile
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.readers.web_archives import HttpResponse, unpack_body
from gristmill.steps import Read


def open_file(path, *, cell_bytes=4 << 20, **keys):
    read = Read(read=str(path), **keys)
    file = SourceFile(str(path), path.name, path.stat().st_size, "1", 7)
    return open_reader(read, file, plan_schema(read, [file], keeps_record=True), cell_bytes=cell_bytes)


def read_all(reader, ranges=((0, None),)):
    cells = [cell for first, stop in ranges for cell in reader.read_cells(first, stop)]
    rows = [row for cell in cells for row in cell.batch.to_pylist()]
    bad = [(record.position, record.reason) for cell in cells for record in cell.quarantined]
    counters = sum((cell.counters for cell in cells), start=cells[0].counters.__class__()) if cells else {}
    return rows, bad, counters


@pytest.fixture(scope="module")
def records():
    return crawl(40)


@pytest.mark.parametrize("form", ["members", "whole", "plain"])
def test_pages_and_their_columns(tmp_path, records, form):
    path = tmp_path / ("a.warc" if form == "plain" else "a.warc.gz")
    joined = b"".join(records)
    path.write_bytes(
        pack_members(records) if form == "members" else gzip.compress(joined) if form == "whole" else joined
    )
    reader = open_file(path)
    assert reader.can_cut == (form == "members")
    rows, bad, counters = read_all(reader)
    assert len(rows) == 40
    assert not bad
    assert counters == {"skipped_warcinfo": 1, "skipped_request": 40, "skipped_metadata": 40}
    assert rows[3]["text"].startswith("<html><body><nav>Menu</nav>")
    assert {key: rows[3][key] for key in ("url", "host", "date", "content_type")} == {
        "url": "https://site3.example.com/page/3",
        "host": "site3.example.com",
        "date": "2026-01-31T12:00:00Z",
        "content_type": "text/html",
    }


def test_fastwarc_sees_the_same_pages_at_the_same_offsets(tmp_path, records):
    fastwarc = pytest.importorskip("fastwarc.warc")
    path = tmp_path / "a.warc.gz"
    path.write_bytes(pack_members(records))
    rows, _, _ = read_all(open_file(path, cell_bytes=700))
    with path.open("rb") as file:
        iterator = fastwarc.ArchiveIterator(file, record_types=fastwarc.WarcRecordType.response)
        expected = [(record.stream_pos, record.reader.read().decode()) for record in iterator]
    assert [(row["origin"]["position"], row["text"]) for row in rows] == expected


@settings(max_examples=20, deadline=None)
@given(cell_bytes=st.integers(40, 3000), data=st.data())
def test_any_cells_and_ranges_give_the_same(records, tmp_path_factory, cell_bytes, data):
    path = tmp_path_factory.mktemp("warc") / "a.warc.gz"
    content = bytearray(pack_members(records))
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(content) - 60))
        content[start : start + 50] = bytes(50)
    path.write_bytes(content)
    reader = open_file(path, cell_bytes=cell_bytes)
    whole = read_all(reader)
    cut = data.draw(st.integers(0, len(reader.cell_sizes())))
    assert read_all(reader, [(0, cut), (cut, None)]) == whole
    assert sorted({row["origin"]["position"] for row in whole[0]}) == [row["origin"]["position"] for row in whole[0]]


@pytest.mark.parametrize(
    "content", [b"", b"not a web archive", gzip.compress(b"nor this", mtime=0), b"\x1f\x8b\x08 broken"]
)
def test_other_files_give_no_page_and_no_traceback(tmp_path, content):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(content)
    rows, bad, _ = read_all(open_file(path))
    assert not rows
    assert len(bad) <= 1


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("grün".encode(), "text/html", "grün"),
        ("grün".encode("latin-1"), "text/html; charset=ISO-8859-1", "grün"),
        (b"\x93quoted\x94", "text/html; charset=iso-8859-1", "\u201cquoted\u201d"),
        ('<meta charset="shift_jis">日本'.encode("shift_jis"), "text/html", '<meta charset="shift_jis">日本'),
        ("привет".encode("cp1251"), 'text/html; charset="windows-1251"', "привет"),
        ("\ufeffmark".encode("utf-16-le"), "text/html", "mark"),
        (b"gr\xfcn", "text/html", "grün"),
        (b"gr\xfcn", "text/html; charset=no-such-thing", "grün"),
        ("grün".encode(), "text/html; charset=hex", "grün"),
        (b"a-b \\n", "text/html; charset=punycode", "a-b \\n"),
        (b"a-b \\n", "text/html; charset=unicode_escape", "a-b \\n"),
        (b"bad \xff utf-8", "text/html; charset=utf-8", "bad \ufffd utf-8"),
    ],
)
def test_encodings(tmp_path, body, content_type, text):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(pack_members([warc_record("response", http_page(body, content_type))]))
    rows, _, _ = read_all(open_file(path))
    assert [row["text"] for row in rows] == [text]


def test_pages_with_replaced_bytes_are_counted(tmp_path):
    bodies = ["grün".encode("latin-1"), "grün".encode(), "a lost \ufffd character".encode(), b"\xe4 \xf6", b"plain"]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(
        pack_members(warc_record("response", http_page(body, "text/html; charset=utf-8")) for body in bodies)
    )
    rows, _, counters = read_all(open_file(path))
    assert [row["text"].count("\ufffd") for row in rows] == [1, 0, 1, 2, 0]
    assert counters == {"pages_with_replaced_bytes": 2}


def test_transfers_types_and_states(tmp_path):
    page = b"<p>packed page"
    chunked = b"5\r\n<p>ch\r\n4\r\nunks\r\n0\r\n\r\n"
    path = tmp_path / "a.warc.gz"
    path.write_bytes(
        pack_members(
            warc_record("response", content)
            for content in [
                http_page(gzip.compress(page), Content_Encoding="gzip"),
                http_page(page, Content_Encoding="gzip"),  # unpacked by the crawler
                http_page(chunked, Transfer_Encoding="chunked"),
                http_page(b"\x1f\x8b broken", Content_Encoding="gzip"),
                http_page(b"%PDF", "application/pdf"),
                http_page(b"gone", status="404 Not Found"),
                b"no http",
                http_page(b"  \n"),
                http_page(b"plain text", "text/plain"),
            ]
        )
    )
    rows, bad, counters = read_all(open_file(path))
    assert [row["text"] for row in rows] == ["<p>packed page", "<p>packed page", "<p>chunks", "plain text"]
    assert [reason for _, reason in bad] == ["invalid_body"]
    assert counters == {"skipped_content_type": 1, "skipped_status": 1, "skipped_not_http": 1}


@pytest.mark.parametrize("packing", ["br", "zstd"])
def test_other_compressions(packing):
    compress = pytest.importorskip("brotli").compress if packing == "br" else zstandard.compress
    page = "<p>größer als zuvor".encode() * 20

    def unpack(body, max_bytes):
        return unpack_body(HttpResponse(200, {"content-encoding": packing}, body), max_bytes)

    packed = compress(page)
    assert unpack(packed, len(page)) == unpack(page, len(page)) == page
    for body, max_bytes, message in [
        (packed, len(page) - 1, "more than"),
        (compress(b"<" * (64 << 20)), 1 << 20, "more than"),
        (packed[:-3], len(page), "cannot be unpacked"),
        (b"\xff" + packed, len(page), "cannot be unpacked"),
    ]:
        with pytest.raises(ValueError, match=message):
            unpack(body, max_bytes)


def test_compressions_one_after_the_other():
    page = "<p>größer als zuvor".encode()
    for packing, body in [
        ("gzip, gzip", gzip.compress(gzip.compress(page))),
        ("deflate,GZIP", gzip.compress(zlib.compress(page))),
        ("gzip, identity", gzip.compress(page)),
        ("gzip, gzip", gzip.compress(page)),  # the crawler has unpacked it once
    ]:
        assert unpack_body(HttpResponse(200, {"content-encoding": packing}, body), 1000) == page
    bomb = gzip.compress(gzip.compress(b"<" * (1 << 20)))
    with pytest.raises(ValueError, match="more than"):
        unpack_body(HttpResponse(200, {"content-encoding": "gzip, gzip"}, bomb), 10_000)


def test_wet_files(tmp_path):
    path = tmp_path / "a.warc.wet.gz"
    records = [warc_record("conversion", f"Text {n} ü".encode(), content_type="text/plain") for n in range(3)]
    path.write_bytes(pack_members(records))
    rows, _, _ = read_all(open_file(path))
    assert [row["text"] for row in rows] == ["Text 0 ü", "Text 1 ü", "Text 2 ü"]
    assert io.BytesIO(path.read_bytes()).read(3) == b"\x1f\x8b\x08"
