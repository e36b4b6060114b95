"""Headers that lie: whatever a tar says, reading it ends, keeps the other members, and names the damage."""

import gzip

import pyarrow as pa
import pytest

from gristmill.core.records import ORIGIN_TYPE
from gristmill.readers.read import Read
from gristmill.readers.source import open_reader
from gristmill.storage.tar_index import index_tar, load_tar_index

SCHEMA = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string()), ("__key__", pa.large_string())])


def header(name, size, kind=b"0"):
    field = b"%011o\0" % size if 0 <= size < 8**11 else b"\x80" + (size % 2**88).to_bytes(11, "big")
    if size < 0:
        field = b"\xff" + field[1:]
    block = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"0" * 11 + b"\0" + b" " * 8 + kind
    block = (block + bytes(100) + b"ustar\x0000").ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def padded(data):
    return data + bytes(-len(data) % 512)


def sample(number):
    text = b"text %d" % number
    return header(b"%06d.txt" % number, len(text)) + padded(text)


def pax(name, value):
    record = f" {name}={value}\n"
    size = next(size for size in range(len(record), len(record) + 9) if len(str(size)) + len(record) == size)
    return header(b"pax", size, b"x") + padded(f"{size}{record}".encode())


DAMAGED = {
    "size above 64 bits": header(b"a.txt", 2**80),
    "size at 63 bits": header(b"a.txt", 2**63 - 1),
    "negative size": header(b"a.txt", -1),
    "name of 8 GiB": header(b"././@LongLink", 8**11 - 1, b"L"),
    "name of 2**60 bytes": header(b"././@LongLink", 2**60, b"L"),
    "attributes of 2**60 bytes": header(b"pax", 2**60, b"x"),
    "attributes that are longer than they are": header(b"pax", 40, b"x") + padded(b"9" * 20 + b" path=x\n") + sample(9),
    "pax size": pax("size", 2**80) + sample(9),
    "pax size without a number": pax("size", "abc") + sample(9),
    "names of names": (header(b"././@LongLink", 3, b"L") + padded(b"ab\0")) * 3000 + sample(9),
}
ODD = {
    "sparse map without numbers": (pax("GNU.sparse.map", "1,x") + sample(9), []),
    "folder with a size": (header(b"d.txt", 5000, b"5"), []),
    "link with a size": (header(b"l.txt", 5000, b"2"), []),
    "name that is no UTF-8": (header(b"\xff\xfe.txt", 3) + padded(b"odd"), []),
}


def tar(middle):
    return sample(0) + sample(1) + middle + sample(2) + bytes(1024)


def read(new_file, name, data):
    reader = open_reader(Read(read="x", text="txt", columns=["__key__"]), new_file(name, data), SCHEMA)
    cells = list(reader.read_cells())
    records = [record for cell in cells for record in cell.batch.to_pylist()]
    return records, [bad.reason for cell in cells for bad in cell.quarantined]


@pytest.mark.parametrize("middle", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_damage_is_named_and_the_rest_is_read(new_file, name, middle):
    data = tar(middle)
    records, reasons = read(new_file, name, gzip.compress(data, 1) if name.endswith(".gz") else data)
    texts = [record["text"] for record in records if record["text"] != "text 9"]
    assert reasons in (["invalid_tar"], ["truncated_stream"])
    assert texts == ["text 0", "text 1", "text 2"][: 3 if reasons == ["invalid_tar"] else 2]


@pytest.mark.parametrize(("middle", "expected"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_what_is_odd_ends_nothing(new_file, name, middle, expected):
    data = tar(middle)
    records, reasons = read(new_file, name, gzip.compress(data, 1) if name.endswith(".gz") else data)
    texts = [record["text"] for record in records]
    assert [text for text in texts if text != "odd"] == ["text 0", "text 1", "text 2"]
    assert reasons == expected
    if "odd" in texts:
        assert records[2]["__key__"] == r"\xff\xfe"


@pytest.mark.parametrize("middle", [*DAMAGED.values(), *(middle for middle, _ in ODD.values())], ids=[*DAMAGED, *ODD])
def test_an_index_of_it_can_be_used(tmp_path, middle):
    path = tmp_path / "x.tar"
    path.write_bytes(tar(middle))
    index = index_tar(str(path))
    stored = tmp_path / "x.tarindex"
    stored.write_bytes(index.to_bytes())
    assert list(load_tar_index(stored).members()) == list(index.members())
    assert (index.fault is None) == (middle not in DAMAGED.values())
