"""A damaged Parquet file in a run: what cannot be read is counted, a file without a footer stops the plan."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.steps import Read, Write


def parquet_bytes():
    sink = io.BytesIO()
    table = pa.table({"text": [f"text {row}" for row in range(1000)], "n": list(range(1000))})
    pq.write_table(table, sink, row_group_size=100, use_dictionary=False)
    return sink.getvalue()


DATA = parquet_bytes()


def test_the_run_counts_the_rows_and_goes_on(mill, tmp_path):
    data = bytearray(DATA)
    start = pq.ParquetFile(io.BytesIO(DATA)).metadata.row_group(3).column(0).data_page_offset
    data[start : start + 500] = bytes(500)
    (tmp_path / "x.parquet").write_bytes(data)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/x.parquet")}, [Write(format="jsonl")], max_quarantine=0.2)
    result = mill.run(recipe)
    [account] = result.books["web"]
    assert (account.records_in, account.records_out, account.quarantined) == (1000, 900, {"damaged": 100})
    [entry] = result.dataset().quarantine()
    assert (entry["file"], entry["position"], entry["records"]) == ("x.parquet", 300, 100)
    assert "300 to 399" in entry["error"]


@pytest.mark.parametrize("size", [0, 3, 8, 12, len(DATA) - 1, len(DATA) // 2])
def test_a_file_without_its_footer_is_refused_in_the_plan(mill, tmp_path, size):
    for number in range(40):  # more than the plan would otherwise look at
        (tmp_path / f"{number:03}.parquet").write_bytes(DATA[:size] if number == 21 else DATA)
    with pytest.raises(UsageError, match=r"021\.parquet"):
        mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.parquet")}, []))
