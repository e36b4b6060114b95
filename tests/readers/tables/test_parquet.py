"""Damage inside a Parquet file loses the rows that cannot be read, counted."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader

READ = Read(read="x", columns=["n"])
TABLE = pa.table({"text": [f"text {row} " + "x" * (row % 50) for row in range(1000)], "n": list(range(1000))})


def parquet_bytes(table=TABLE, group=100):
    sink = io.BytesIO()
    pq.write_table(
        table, sink, row_group_size=group, write_page_checksum=True, use_dictionary=False, data_page_size=256
    )
    return sink.getvalue()


DATA = parquet_bytes()
CHUNKS = [
    pq.ParquetFile(io.BytesIO(DATA)).metadata.row_group(group).column(column)
    for group in range(10)
    for column in range(2)
]


def damaged(new_file, place, size):
    data = bytearray(DATA)
    for at in range(place, place + size):
        data[at] ^= 0xFF
    return new_file("x.parquet", bytes(data))


@settings(max_examples=60, deadline=None)
@given(
    chunk=st.sampled_from(CHUNKS),
    share=st.floats(0, 1),
    size=st.integers(1, 40),
    cell_bytes=st.integers(200, 60_000),
    borders=st.lists(st.integers(0, 40), max_size=3).map(lambda inner: [0, *sorted(inner), None]),
)
def test_every_row_is_read_or_counted(new_file, ranges, chunk, share, size, cell_bytes, borders):
    place = chunk.data_page_offset + int(share * max(0, chunk.total_compressed_size - size))
    file = damaged(new_file, place, min(size, chunk.total_compressed_size))
    schema = plan_schema(READ, [file], keeps_record=False)
    reader = open_reader(READ, file, schema, cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    assert len(whole.records) + sum(bad.num_records for bad in whole.bad) == 1000
    assert set(whole.reasons) <= {"damaged"}
    assert [record["text"] for record in whole.records] == [TABLE["text"][row].as_py() for row in whole.positions]
    groups = {row // 100 for row in range(1000)} - {bad.position // 100 for bad in whole.bad}
    assert {position // 100 for position in whole.positions} >= groups
    assert len(groups) >= 9  # one damaged place, one group
    assert ranges(reader, borders) == whole
    assert len(reader.cell_sizes()) == len(whole.cells)
