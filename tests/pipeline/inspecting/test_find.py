"""The first record with a value, in files of every kind."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import SourceFile
from gristmill.pipeline.inspecting.find import find_record, open_whole_records
from gristmill.readers.read import Read

RECORDS = [
    {"text": f"grün {n}", "id": n % 400, "url": f"https://a.b/{n}", "meta": {"host": f"h{n}"}} for n in range(900)
]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def _file(path):
    return Read(read=str(path)), SourceFile(
        path=str(path), relative=path.name, num_bytes=path.stat().st_size, version="", id=0
    )


@pytest.fixture(params=["jsonl", "jsonl.gz", "parquet"])
def files(request, tmp_path):
    """Two files; the records are in the second."""
    first, second = tmp_path / f"a.{request.param}", tmp_path / f"b.{request.param}"
    for path, count in ((first, 1), (second, 900)):
        if request.param == "parquet":
            pq.write_table(pa.Table.from_pylist(RECORDS[-count:]), path, row_group_size=100)
        else:
            content = b"\n".join(LINES.splitlines()[-count:]) + b"\n"
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return [_file(first), _file(second)]


@pytest.mark.parametrize(
    ("wanted", "number"),
    [("id=7", 7), ("url=https://a.b/555", 555), ("meta.host=h600", 600), ("text=ün 17", 17)],
)
def test_the_first_record_with_a_value(files, wanted, number):
    said = []
    index, position = find_record(wanted, files, said.append)
    batches = [cell.batch for cell in open_whole_records(*files[1]).read_cells()]
    positions = [at for batch in batches for at in batch.column("origin").field("position").to_pylist()]
    assert (index, positions.index(position)) == (1, number)
    assert said[0].startswith("searching: 0 %")


def test_what_is_not_found(files):
    for wanted in ("id=4000", "url=https://a.b", "no=1", "text=blue"):
        with pytest.raises(UsageError, match="none of 901 records in 2 files") as raised:
            find_record(wanted, files, str)
        assert wanted.startswith("text") or "id, url, meta" in raised.value.help
    for wanted in ("id", "=7", "id="):
        with pytest.raises(UsageError, match="does not say what to find"):
            find_record(wanted, files, str)


def test_text_in_chats(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": word}]}) + "\n" for word in ("so", 'a "ü"\nb'))
    )
    _, position = find_record('text="ü"\nb', [_file(tmp_path / "a.jsonl")], str)
    assert position > 0
