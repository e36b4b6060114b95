"""WebDataset tars: grouped as webdataset does, judged sample by sample, read as far as they go, never unpacked."""

import io
import tarfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import ORIGIN_TYPE
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.storage.codecs import compress_frame

TEXT_ONLY = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string())])


def tar(members, form=tarfile.PAX_FORMAT, kind=tarfile.REGTYPE):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = "elsewhere" if kind != tarfile.REGTYPE else ""
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


NAMES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "a/", "a.b/"]),
    st.sampled_from(["1", "2", "long" * 40]),
    st.sampled_from(["", ".txt", ".TXT", ".json", ".seg.txt"]),
)
MEMBERS = st.lists(st.tuples(NAMES, st.sampled_from([b"", b"x", b"text" * 300, b"{}", b"\xff"])), max_size=12)


@settings(max_examples=150, deadline=None)
@given(members=MEMBERS, cell_bytes=st.integers(1, 3000), form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_same_samples_as_webdataset(new_file, ranges, members, cell_bytes, form):
    tariterators = pytest.importorskip("webdataset.tariterators")
    data = tar(members, form)
    file = new_file("x.tar", data)
    reader = open_reader(Read(read="x", text="txt"), file, TEXT_ONLY, cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    for border in range(1, len(whole.cells) + 1):
        assert ranges(reader, [0, border, None]) == whole
    duplicates = whole.reasons.count("duplicate_member")
    samples = list(_webdataset_samples(tariterators, data))
    if not duplicates:
        texts = [sample["txt"] for sample in samples if "txt" in sample]
        assert whole.texts == [text.decode() for text in texts if text != b"\xff"]
        assert whole.reasons.count("invalid_utf8") == texts.count(b"\xff")
        assert whole.reasons.count("missing_text") == len(samples) - len(texts)
    assert [cell for cell, *_ in whole.cells] == list(range(len(whole.cells)))


def _webdataset_samples(tariterators, data):
    files = ({**file, "__url__": "x"} for file in tariterators.tar_file_iterator(io.BytesIO(data)))
    return tariterators.group_by_keys(files, handler=lambda error: True)


@settings(max_examples=200, deadline=None)
@given(keep=st.integers(0, 12_000), cell_bytes=st.integers(500, 3000), suffix=st.sampled_from(["", ".zst", ".gz"]))
def test_truncated_tar_is_used_as_far_as_it_goes(new_file, ranges, keep, cell_bytes, suffix):
    members = [(f"{number}.{extension}", b"x" * 700) for number in range(4) for extension in ("txt", "cls")]
    data = tar(members)[:keep]
    if suffix:
        data = compress_frame(data, {".zst": "zstd", ".gz": "gzip"}[suffix])
    reader = open_reader(Read(read="x", text="txt"), new_file(f"x.tar{suffix}", data), TEXT_ONLY, cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    contents = [512 + number * 2 * (512 + 1024) + 700 for number in range(4)]
    assert len(whole.records) == sum(end <= keep for end in contents)
    is_cut = 0 < keep < 8 * (512 + 1024) + 1
    assert whole.reasons == (["truncated_stream"] if is_cut else [])
    for border in range(1, len(whole.cells) + 1):
        assert ranges(reader, [0, border, None]) == whole


def test_damaged_header_in_the_middle(new_file, read_all):
    data = bytearray(tar([(f"{number}.txt", b"x") for number in range(4)]))
    data[2048:2548] = b"?" * 500
    outcome = read_all(Read(read="x", text="txt"), new_file("x.tar", bytes(data)))
    assert outcome.texts == ["x", "x", "x"]
    assert [(bad.reason, bad.position, bad.num_bytes) for bad in outcome.bad] == [("invalid_tar", 2, 1024)]


@settings(max_examples=100, deadline=None)
@given(block=st.integers(0, 40), size=st.sampled_from([100, 512, 1024, 3000]), cell_bytes=st.integers(500, 5000))
def test_samples_next_to_damage_are_complete_in_every_range_of_cells(new_file, ranges, block, size, cell_bytes):
    members = [(f"{number}.{extension}", b"x" * 700) for number in range(6) for extension in ("cls", "txt")]
    data = bytearray(tar(members))
    data[block * 512 : block * 512 + size] = b"?" * size
    read = Read(read="x", text="txt")
    schema = plan_schema(read, [new_file("whole.tar", tar(members))], keeps_record=False, carries_members=True)
    assert "cls" in schema.names
    reader = open_reader(read, new_file("x.tar", bytes(data)), schema, cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    assert all(record["cls"] for record in whole.records)
    assert len(whole.records) >= 6 - 2 - size // 1000
    assert set(whole.reasons) <= {"invalid_tar"}
    for border in range(1, len(whole.cells) + 1):
        assert ranges(reader, [0, border, None]) == whole


def test_archives_put_one_after_the_other(new_file, read_all):
    data = tar([("1.txt", b"a")]) + tar([("2.txt", b"b")])
    assert read_all(Read(read="x", text="txt"), new_file("x.tar", data)).texts == ["a", "b"]


def test_unsafe_names_are_refused_and_links_skipped(new_file, read_all):
    names = ["/etc/1.txt", "../2.txt", "a/../../3.txt", "a/..b.txt"]
    outcome = read_all(
        Read(read="x", text="txt"), new_file("x.tar", tar([("0.txt", b"a"), *((name, b"x") for name in names)]))
    )
    assert outcome.texts[0] == "a"
    assert [(bad.reason, bad.position) for bad in outcome.bad][:3] == [("unsafe_name", at) for at in (1, 2, 3)]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        file = new_file("x.tar", tar([("1.txt", b"")], kind=kind))
        [cell] = open_reader(Read(read="x", text="txt"), file, TEXT_ONLY).read_cells()
        assert not cell.batch.num_rows
        assert not cell.quarantined
        assert cell.counters == {"skipped_members": 1}
    [cell] = open_reader(
        Read(read="x", text="txt"), new_file("x.tar", tar([("1.txt", b"a"), ("README", b"b")])), TEXT_ONLY
    ).read_cells()
    assert cell.counters == {"skipped_members": 1}
    assert (
        read_all(Read(read="x", text="txt"), new_file("x.tar", tar([("1.txt", b"")], kind=tarfile.DIRTYPE))).counted()[
            0
        ]
        == 0
    )


def test_large_members_are_set_aside_without_being_read(new_file, read_all):
    data = tar([("1.txt", b"x" * 101), ("1.jpg", b"x" * 5000), ("2.txt", b"x" * 100), ("2.jpg", b"x" * 5000)])
    outcome = read_all(Read(read="x", text="txt", max_record_bytes=100), new_file("x.tar", data))
    assert outcome.texts == ["x" * 100]
    assert [(bad.reason, bad.num_bytes, bad.raw) for bad in outcome.bad] == [("too_large", 101, None)]


def test_written_by_webdataset(new_file, read_all, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    path = tmp_path / "x.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(50):
            writer.write({"__key__": f"{number:04}", "txt": f"text {number}", "json": {"n": number}})
    file = new_file("x.tar", path.read_bytes())
    outcome = read_all(Read(read="x", text="txt", columns=["json.n"]), file, cell_bytes=200)
    assert outcome.texts == [f"text {number}" for number in range(50)]
    assert [record["json.n"] for record in outcome.records] == list(range(50))


def test_empty_tars(new_file, read_all):
    assert (
        read_all(Read(read="x", text="txt"), new_file("x.tar", b"")).counted()
        == read_all(Read(read="x", text="txt"), new_file("x.tar", tar([]))).counted()
    )
