"""Small files read together give what their own readers give one after the other."""

import gzip
import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.readers.cells import CELL_BYTES
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.small_files import read_small_files
from gristmill.readers.source import open_reader

GOOD = b'{"text": "one", "n": 1}'
LINES = {
    "plain": GOOD + b"\n" + GOOD + b"\n",
    "unterminated": GOOD + b"\n" + GOOD,
    "empty": b"",
    "mark": b"\xef\xbb\xbf" + GOOD + b"\n{broken\n",
    "mark alone": b"\xef\xbb\xbf",
    "blanks": b"\n  \n" + GOOD + b"\r\n\t",
    "bad": b'{"no": 1}\n' + GOOD + b"\n\xff\xfe\n[1]",
    "half a character": GOOD + b"\n\xe7\xb2",
    "too large": b'{"text": "' + b"x" * 300 + b'"}\n' + GOOD,
}
TEXTS = {
    "plain": b"some text\nof two lines",
    "empty": b"",
    "blank": b" \n\t",
    "mark": b"\xef\xbb\xbfmarked",
    "half a character": b"\xe7\xb2",
    "the other half": b"\x89",
    "too large": b"x" * 300,
}


def rows_of(cells):
    cells = list(cells)
    for cell in cells:
        cell.batch.validate(full=True)
    rows = [row for cell in cells for row in cell.batch.to_pylist()]
    return rows, sum(cell.num_blank for cell in cells), [bad for cell in cells for bad in cell.quarantined]


def assert_same(read, files, schema=None, **options):
    files = [msgspec.structs.replace(file, id=2**63 + number) for number, file in enumerate(files)]
    schema = schema or plan_schema(read, files, keeps_record=True)
    alone = [cell for file in files for cell in open_reader(read, file, schema).read_cells()]
    found = list(read_small_files(read, iter(files), schema, **options))
    assert rows_of(found) == rows_of(alone)
    return found


@settings(deadline=None)  # files are written, and the first call imports
@given(st.lists(st.tuples(st.sampled_from(sorted(LINES)), st.sampled_from(["", ".gz"])), max_size=12))
def test_json_lines(new_file, kinds):
    kinds = [("plain", ""), *kinds]
    files = [
        new_file(f"{kind}.jsonl{suffix}", gzip.compress(LINES[kind], 1) if suffix else LINES[kind])
        for kind, suffix in kinds
    ]
    [cell] = assert_same(Read(read="x", columns=["n"], max_record_bytes=200), files)
    assert cell.batch.num_rows >= 2


@settings(deadline=None)  # files are written, and the first call imports
@given(st.lists(st.sampled_from(sorted(TEXTS)), min_size=1, max_size=12))
def test_texts(new_file, kinds):
    assert_same(Read(read="x", max_record_bytes=200), [new_file("x.txt", TEXTS[kind]) for kind in kinds])


@settings(deadline=None)  # files are written, and the first call imports
@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"\x00", b"\n")), min_size=1, max_size=6))
def test_texts_between_separators(new_file, contents):
    assert_same(Read(read="x", separator="\n\n"), [new_file("x.txt", data) for data in contents])


def test_a_damaged_stream_among_others(new_file):
    packed = gzip.compress(LINES["plain"] * 50, 1)
    contents = [packed, packed[:-12], gzip.compress(LINES["bad"], 1), packed[:5], packed]
    [cell] = assert_same(Read(read="x"), [new_file("x.jsonl.gz", data) for data in contents])
    assert [bad.reason for bad in cell.quarantined].count("truncated_stream") == 2


def test_what_unpacks_to_more_than_a_cell_is_read_in_its_own_cells(new_file):
    large = (GOOD[:-1] + b', "more": "' + b"y" * 200 + b'"}\n') * (CELL_BYTES // 100)
    assert len(large) > 2 * CELL_BYTES
    files = [new_file(f"{n}.jsonl.gz", gzip.compress(data, 1)) for n, data in enumerate([LINES["bad"], large] * 2)]
    cells = assert_same(Read(read="x"), files, batch_bytes=400)
    assert len(cells) > 2
    assert max(cell.batch.nbytes for cell in cells) < 4 * CELL_BYTES


def parquet(texts):
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "n": range(len(texts))}), sink)
    return sink.getvalue()


def test_parquet_files_are_joined_to_one_batch(new_file):
    contents = [parquet(["a", None, "b"]), parquet([]), parquet(["c"] * 5)]
    [cell] = assert_same(Read(read="x", columns=["n"]), [new_file("x.parquet", data) for data in contents])
    assert cell.batch.num_rows == 7


def test_batches_stay_bounded(new_file):
    files = [new_file("x.parquet", parquet(["c" * 100])) for _ in range(9)]
    cells = assert_same(Read(read="x"), files, batch_bytes=400)
    assert len(cells) > 2
    assert all(cell.batch.nbytes <= 400 for cell in cells)


@pytest.mark.parametrize("names", [["a.jsonl"] * 3, ["a.txt"] * 3])
def test_nothing_in_them(new_file, names):
    schema = plan_schema(Read(read="x"), [new_file(names[0], LINES["plain"])], keeps_record=False)
    assert_same(Read(read="x"), [new_file(name, b"") for name in names], schema)
