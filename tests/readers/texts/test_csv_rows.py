"""Where rows and fields begin and end: as the csv module says."""

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.readers.texts.test_csv_file import read_in

from gristmill.core.records import SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.readers.texts.csv_rows import Dialect, RowScanner, unquote_field

CELL = 32


DIALECTS = st.builds(Dialect, st.sampled_from(",;\t|"), st.booleans(), st.booleans())


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


def read_whole(data, name="a.csv", **keys):
    return read_in(reader_of(data, name, **keys), [0, None])


@settings(max_examples=300, deadline=None)
@given(st.text('ab,;"\n\r \t', max_size=30), DIALECTS)
def test_rows_are_those_of_the_csv_module(text, dialect):
    data = text.encode()
    found = RowScanner(dialect).split(data)
    rows, first = [], 0
    for _, _, last in found.rows.tolist():
        rows.append([unquote_field(data, *field).decode() for field in found.fields[first:last].tolist()])
        first = last
    if not found.is_unclosed:
        assert rows == oracle(text, dialect)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("num_ragged", [0, 3, 6, 9, 30])
def test_rows_may_be_ragged_in_any_number(delimiter, num_ragged):
    rows = [["text", "n", "m"], *([f"a{number}", "1, 2; 3", "x"] for number in range(9))]
    rows += [["b", "2"][: 1 + number % 2] + ["c"] * (4 * (number % 3 == 0)) for number in range(num_ragged)]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    expected = [row for row in rows[1:] if len(row) == 3]
    records, bad, _ = read_whole(text.getvalue().encode())
    assert [list(record.values()) for _, record in records] == expected
    assert [each.reason for each in bad] == ["ragged_row"] * (len(rows) - 1 - len(expected))


def test_quotes_that_stay_in_texts_are_counted():
    for cell_bytes in (CELL, 1 << 20):
        cells = reader_of(b'text,n\na,1\n"b,2\nc,"x\n', cell_bytes=cell_bytes).read_cells()
        assert sum(cell.counters["literal_quotes"] for cell in cells) == 2
        cells = reader_of(b'text,n\n"a",1\n"b",2\n', cell_bytes=cell_bytes).read_cells()
        assert not any(+cell.counters for cell in cells)


def test_an_unclosed_quote_takes_the_rest_and_says_so():
    data = b'text,n\na,1\n"b,2\nc,3\n'
    records, bad, _ = read_whole(data, delimiter=",")
    # By the sample such a quote is a character like others.
    assert [record["text"] for _, record in records] == ["a", '"b', "c"]
    data = b'text,n\n"a, a",1\n"b\nb",2\n"c",3\n' * 1 + b'"d,4\ne,5\n'
    records, bad, _ = read_whole(data)
    assert [record["text"] for _, record in records] == ["a, a", "b\nb", "c"]
    assert [(each.reason, data[each.position :]) for each in bad] == [("unclosed_quote", b'"d,4\ne,5\n')]
