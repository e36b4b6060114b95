"""CSV: what Python's csv module reads, cut anywhere alike, each bad row by its reason and place."""

import csv
import gzip
import io
import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.readers.texts.csv_file import find_csv_layout
from gristmill.readers.texts.csv_rows import Dialect
from gristmill.storage.codecs import compress_frame

CELL = 32
VALUES = st.text(st.one_of(st.sampled_from('ab,;|"\n\r\t \\'), st.characters(exclude_categories=["Cs"])), max_size=8)
BORDERS = st.lists(st.integers(0, 40), max_size=4).map(lambda inner: [0, *sorted(inner), None])


def oracle(text, dialect):
    quoting = csv.QUOTE_MINIMAL if dialect.has_quotes else csv.QUOTE_NONE
    lines = io.StringIO(text, newline="")
    return list(csv.reader(lines, delimiter=dialect.delimiter, quoting=quoting, skipinitialspace=dialect.skips_space))


def describe(data, name="a.csv", **keys):
    path = Path(tempfile.mkdtemp(), name)
    path.write_bytes(data)
    return Read(read=str(path), **keys), SourceFile(str(path), name, len(data), "1", 7)


def reader_of(data, name="a.csv", *, cell_bytes=CELL, **keys):
    read, file = describe(data, name, **keys)
    return open_reader(read, file, plan_schema(read, [file], keeps_record=True), cell_bytes=cell_bytes)


def read_in(reader, borders):
    records, bad, num_blank = [], [], 0
    for first, stop in itertools.pairwise(borders):
        for cell in reader.read_cells(first, stop):
            records += [(row["origin"]["position"], json.loads(row["record"])) for row in cell.batch.to_pylist()]
            bad += cell.quarantined
            num_blank += cell.num_blank
    return records, bad, num_blank


def read_whole(data, name="a.csv", **keys):
    return read_in(reader_of(data, name, **keys), [0, None])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=8),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.sampled_from(["", "", ".gz", ".zst"]),
    BORDERS,
)
def test_what_the_csv_module_wrote_is_read_in_any_ranges(rows, delimiter, line_end, quotes_all, suffix, borders):
    text = io.StringIO(newline="")
    writer = csv.writer(
        text,
        delimiter=delimiter,
        lineterminator=line_end,
        quoting=csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL,
    )
    writer.writerow(["id", "text", "more"])
    writer.writerows(rows)
    data = text.getvalue().encode()
    packed = {"": data, ".gz": gzip.compress(data), ".zst": compress_frame(data, "zstd")}[suffix]
    reader = reader_of(packed, "a.csv" + suffix, delimiter=delimiter)
    whole = read_in(reader, [0, None])
    # How the sample reads a quote alone is another matter: see below.
    if find_csv_layout(*describe_args(packed, "a.csv" + suffix, delimiter)).dialect != Dialect(delimiter):
        return
    # The writer does not quote every line end, which then ends a row.
    expected = [row for row in oracle(text.getvalue(), Dialect(delimiter))[1:] if row]
    assert [list(record.values()) for _, record in whole[0]] == [row for row in expected if len(row) == 3]
    assert [bad.reason for bad in whole[1]] == ["ragged_row" for row in expected if len(row) != 3]
    if quotes_all:
        assert [list(row) for row in rows] == expected
    for position, _ in whole[0]:
        before = list(csv.reader(io.StringIO(data[:position].decode(), newline=""), delimiter=delimiter))
        assert data[:position].endswith((b"\n", b"\r"))
        assert before[0] == ["id", "text", "more"]
    assert read_in(reader, borders) == whole


def describe_args(data, name, delimiter):
    read, file = describe(data, name, delimiter=delimiter)
    return read, file.path


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8), st.integers(1, 4))
def test_pieces_give_what_the_file_gives(unpack, rows, cells_a_piece):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["id", "text"], *rows])
    data = gzip.compress(text.getvalue().encode())
    read, file = describe(data, "a.csv.gz")
    schema = plan_schema(read, [file], keeps_record=True)
    whole = read_in(open_reader(read, file, schema, cell_bytes=CELL), [0, None])
    found = [[], [], 0]
    for piece in unpack(read, file, cells_a_piece, CELL):
        part = read_in(open_reader(read, file, schema, piece=piece, cell_bytes=CELL), [0, None])
        found = [one + other for one, other in zip(found, part, strict=True)]
    assert tuple(found) == whole


@pytest.mark.parametrize(
    ("data", "name", "delimiter", "has_quotes"),
    [
        (b"a,b\n1,2\n", "a.csv", ",", True),
        (b"a;b\n1,5;2\n3,5;4\n", "a.csv", ";", True),
        (b"a|b|c\n1|2|3\n", "a.csv", "|", True),
        (b"a\tb\n1\t2\n", "a.csv", "\t", True),
        (b"a\tb, c\n1\t2, 3\n", "a.tsv", "\t", True),
        (b'a\tb\n"quoted\tx\ny\t"z\n"w\tv\n', "a.tsv", "\t", False),
        (b'a,b\n"1,1","2\n2"\n"3","4"\n', "a.csv", ",", True),
        (b"text\nhello, world\nno comma\none, two, three\n", "a.csv", None, True),
    ],
)
def test_a_sample_tells_the_dialect(data, name, delimiter, has_quotes):
    read, file = describe(data, name)
    dialect = find_csv_layout(read, file.path).dialect
    assert dialect.has_quotes == has_quotes
    assert dialect.delimiter == delimiter if delimiter else dialect.delimiter != ","


def test_spaces_behind_delimiters():
    records, bad, _ = read_whole(b'id, text, more\n1, "a, b", c\n2, "d", "e"\n')
    assert not bad
    assert [record for _, record in records] == [
        {"id": "1", "text": "a, b", "more": "c"},
        {"id": "2", "text": "d", "more": "e"},
    ]


def test_values_are_text_unless_asked():
    data = b"text,n,x,ok\na,007,1.50,true\nb,,,\nc,12,-3e2,0\n"
    assert read_whole(data)[0][0][1] == {"text": "a", "n": "007", "x": "1.50", "ok": "true"}
    records, bad, _ = read_whole(data, types={"n": "int64", "x": "float64", "ok": "bool"})
    assert not bad
    assert [tuple(record.values()) for _, record in records] == [
        ("a", 7, 1.5, True),
        ("b", None, None, None),
        ("c", 12, -300.0, False),
    ]


BAD_ROWS = {
    b"a": "ragged_row",
    b"a,1,2,3": "ragged_row",
    b"\xff,1,2": "invalid_utf8",
    b"a,x,2": "column_type",
    b"a,1_0,2": "column_type",
    b"a,99999999999999999999,2": "number_out_of_range",
    b"x" * 300 + b",1,2": "too_large",
}


@pytest.mark.parametrize("bad_row", BAD_ROWS, ids=range(len(BAD_ROWS)))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_row_is_quarantined_alone(bad_row, place):
    rows = [b"a,1,2", b'"b\n",3,4']
    rows.insert(place, bad_row)
    data = b"text,n,m\n" + b"\r\n".join(rows) + b"\r\n"
    keys = {"max_record_bytes": 200, "types": {"n": "int64"}, "delimiter": ","}
    for cell_bytes in (CELL, 1 << 20):
        records, bad, _ = read_whole(data, cell_bytes=cell_bytes, **keys)
        assert [record["text"] for _, record in records] == ["a", "b\n"]
        [found] = bad
        assert found.reason == BAD_ROWS[bad_row]
        assert data[found.position :].startswith(bad_row)
        assert found.raw in (bad_row, None)


def test_a_delimiter_only_in_the_header_is_none():
    data = b"text of one column, not two\n" + b"words and words\n" * 9
    read, file = describe(data)
    assert find_csv_layout(read, file.path).names == ("text of one column, not two",)


def test_blank_rows_are_counted():
    assert read_whole(b"text,n\n\na,1\r\n\r\n\nb,2\n")[2] == 3


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_a_name(mark):
    records, _, _ = read_whole(mark + "text,n\nä,1\n".encode())
    assert records == [(len(mark) + 7, {"text": "ä", "n": "1"})]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "gbk", "shift_jis", "utf-16", "utf-16-le", "utf-32"])
def test_encodings(encoding):
    text = "text,n\nnaïve,1\nzwei,2\n" if encoding in ("latin-1", "cp1252") else "text,n\n日本,1\n中\n,2\n"
    text = text.replace("中\n", '"中\n"')
    data = text.encode(encoding)
    records, bad, _ = read_whole(data, encoding=encoding)
    assert not bad
    assert [list(record.values()) for _, record in records] == list(csv.reader(io.StringIO(text, newline="")))[1:]


def test_utf_16_is_told_by_its_mark():
    assert read_whole("text,n\nä,1\n".encode("utf-16"))[0][0][1] == {"text": "ä", "n": "1"}


def test_bytes_that_are_not_the_encoding():
    records, bad, _ = read_whole(b"text,n\n\xc3\xa4,1\n\x81,2\n", encoding="cp1252")
    assert [each.reason for each in bad] == ["invalid_encoding"]
    assert [record["n"] for _, record in records] == ["1"]


@pytest.mark.parametrize("lost", [1, 5, 12, 30])
def test_a_truncated_stream_is_quarantined_with_its_last_row(lost):
    data = "text,n\n" + "".join(f'"row {number}",{number * number}\n' for number in range(500))
    packed = gzip.compress(data.encode())
    records, bad, _ = read_whole(packed[:-lost], "a.csv.gz", cell_bytes=1 << 10)
    assert [each.reason for each in bad] in (["truncated_stream"], ["corrupt_stream"])
    assert [record["text"] for _, record in records] == [f"row {number}" for number in range(len(records))]


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"text,text\na,b\n", {}),
        (b"title,n\na,b\n", {}),
        (b"text,n\na,b\n", {"types": {"m": "int64"}}),
        (b"t\xe4xt,n\na,b\n", {}),
    ],
)
def test_what_the_plan_refuses(data, keys):
    with pytest.raises(UsageError):
        read_whole(data, **keys)


@pytest.mark.parametrize(
    "keys", [{"delimiter": "ab"}, {"delimiter": "\n"}, {"encoding": "no such"}, {"format": "jsonl", "types": {}}]
)
def test_keys_that_cannot_be(keys):
    with pytest.raises(UsageError):
        Read(read="a.csv", **keys)


def test_files_without_rows():
    assert read_whole(b"text,n\n") == ([], [], 0)
    assert read_whole(b"") == ([], [], 0)
