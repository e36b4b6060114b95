"""Raw files in the viewer, also hostile ones: each record that can be read is shown, and nothing raises."""

import gzip
import io
import json
import tarfile
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import GristmillError, UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.readers import records
from gristmill.readers.records import BadRecord, open_records
from gristmill.report.view.page_requests import Requests


def add(tar, name, content=b"", kind=tarfile.REGTYPE, size=None):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(content) if size is None else size
    tar.addfile(member, io.BytesIO(content) if content else None)


def make_odd_tar(path):
    """A tar with everything that a sample does not have: folders, links, no extension, names that are not UTF-8."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, "folder", kind=tarfile.DIRTYPE)
        add(tar, "0001.txt", b"first")
        add(tar, "0001.json", b'{"n": 1}')
        add(tar, "0001.jpg", b"\xff\xd8\xff nearly a picture")
        add(tar, "README", b"no extension")
        add(tar, "0002.json", b"{broken")
        add(tar, "0002.txt", b"\xff\xfe not text")
        add(tar, "link.txt", kind=tarfile.SYMTYPE)
        add(tar, "device.txt", kind=tarfile.CHRTYPE)
        add(tar, "../../etc/passwd.txt", b"only a name")
        add(tar, "caf\udce9.txt", b"a name that is not UTF-8")
        add(tar, "x" * 200 + ".txt", b"a long name")
    return path


def test_an_odd_tar_is_shown(tmp_path):
    rows = open_collections([make_odd_tar(tmp_path / "a.tar")])["files"]
    requests = Requests({"files": rows})
    shown = requests.read_rows({"count": ["100"]})["rows"]
    assert [row["cells"].get("__key__") or row["cells"]["member"] for row in shown] == [
        "folder", "0001", "README", "0002", "link", "device", "../../etc/passwd", "caf\udce9", "x" * 80 + "…",
    ]  # fmt: skip
    assert shown[1]["cells"]["txt"] == "first"
    assert shown[3]["cells"]["json"] == "7 bytes"
    assert [hit["number"] for hit in requests.search({"query": ["not UTF"]}) if "number" in hit] == [7]
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:3000])
    cut = open_collections([tmp_path / "cut.tar"])["files"]
    assert "damaged" in cut.note
    assert Requests({"files": cut}).read_rows({})["rows"][1]["cells"]["txt"] == "first"


def test_lines_that_are_no_records(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1000)
    lines = [
        b'{"text": "good"}',
        b"{broken",
        b"5",
        b"",
        b'{"text": "' + b"x" * 5000 + b'"}',
        b"[" * 5000,
        b'"\xff"',
        b'{"text": "last"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    file = open_records(str(tmp_path / "a.jsonl"))
    assert file.num_rows == len(lines)
    kinds = [isinstance(file.row(number), BadRecord) for number in range(len(lines))]
    assert kinds == [False, True, False, True, True, True, True, False]
    assert [isinstance(record, BadRecord) for record in file.rows()] == kinds
    assert file.row(0) == {"text": "good"}
    requests = Requests(open_collections([tmp_path / "a.jsonl"]))
    assert "more than" in requests.read_rows({})["rows"][4]["bad"]
    data = gzip.compress(b'{"n": 1}\n' * 100_000, mtime=0)
    (tmp_path / "b.jsonl.gz").write_bytes(data[:-20])
    damaged = open_records(str(tmp_path / "b.jsonl.gz"))
    assert "damaged" in damaged.note
    assert damaged.row(damaged.num_rows - 2) == {"n": 1}


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), max_size=40), st.booleans(), st.data())
def test_any_line_is_found_in_any_order(tmp_path_factory, sizes, ends, data):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    lines = [json.dumps({"n": n, "x": "y" * size}) for n, size in enumerate(sizes)]
    path.write_text("\n".join(lines) + ("\n" if ends and lines else ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_PIECE", 64)
        file = open_records(str(path))
        assert file.num_rows == len(lines)
        for number in data.draw(st.lists(st.integers(0, max(0, len(lines) - 1)), max_size=20)) if lines else []:
            assert file.row(number)["n"] == number


def test_tables_of_every_kind(tmp_path):
    table = pa.table({"text": [f"row {n}" for n in range(1000)], "odd": pa.array([2**62] * 1000, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=70)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(tmp_path / "c.arrow"), "w") as sink,
        pa.ipc.new_stream(sink, table.schema, options=options) as stream,
    ):
        stream.write_table(table, max_chunksize=70)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        plain = open_records(str(tmp_path / name))
        assert plain.num_rows == 1000
        # A time that Python cannot hold is told for each row, not raised.
        assert all(isinstance(plain.row(number), BadRecord) for number in (999, 0, 301, 300))
    pq.write_table(table.select(["text"]), tmp_path / "d.parquet", row_group_size=300)
    good = open_records(str(tmp_path / "d.parquet"))
    assert [good.row(number)["text"] for number in (999, 0, 301, 300)] == ["row 999", "row 0", "row 301", "row 300"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.bin", b"x"), ("a.parquet", b"PAR1nonsense"), ("a.arrow", b""), ("b.arrow", b"ARROW1nonsense"),
     ("a.tar.gz", gzip.compress(b"x", mtime=0)), ("a.parquet.zst", b"x")],
)  # fmt: skip
def test_what_cannot_be_shown_says_why(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError):
        open_collections([tmp_path / name])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_never_raises_anything_else(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    suffix = data.draw(st.sampled_from([".tar", ".parquet", ".arrow", ".jsonl"]))
    path = folder / f"a{suffix}"
    if suffix == ".tar":
        make_odd_tar(path)
    elif suffix == ".parquet":
        table = pa.table({"text": [f"one {n}" for n in range(300)], "list": [[n, n] for n in range(300)]})
        pq.write_table(table, path, row_group_size=100, data_page_size=200, compression="snappy")
    elif suffix == ".arrow":
        with pa.OSFile(str(path), "w") as sink, pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as stream:
            stream.write_batch(pa.record_batch({"text": ["one", "two"]}))
    else:
        path.write_bytes(b'{"text": "one"}\n{"text": "two"}\n')
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(GristmillError):
        requests = Requests(open_collections([path]))
        requests.read_rows({"count": ["50"]})
        list(requests.search({"query": ["one"]}))


def test_a_damaged_dataset_says_where(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(50)))
    read = steps.Read(read=str(tmp_path / "in.jsonl"))
    recipe = gm.Recipe(sources={"a": read}, steps=[steps.Write(format="arrow")], output=str(tmp_path / "out"))
    gm.run(recipe, backend="serial", progress=False)
    [shard] = (tmp_path / "out/train/a").glob("*.arrow")
    content = bytearray(shard.read_bytes())
    start = content.index(b"text 3")
    content[start : start + 2] = b"\xff\xfe"  # no UTF-8
    shard.write_bytes(content)
    requests = Requests(open_collections([tmp_path / "out"]))
    assert "cannot be read" in requests.read_rows({})["rows"][0]["bad"]
    with pytest.raises(GristmillError, match="cannot be read"):
        list(requests.search({"query": ["text 4"]}))
