"""Plain text: a document a file, or one between separators, byte for byte."""

import gzip
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.storage.codecs import compress_frame

PARTS = st.lists(st.sampled_from([b"a", b"\n", b"\n\n", b" ", b"--", b"-", "é".encode(), b"\xff", b"\0"]), max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    data=PARTS.map(b"".join),
    separator=st.sampled_from(["\n", "\n\n", "--", "é"]),
    cell_bytes=st.integers(3, 20),
    borders=st.lists(st.integers(0, 30), max_size=3).map(lambda inner: [0, *sorted(inner), None]),
    suffix=st.sampled_from(["", ".zst"]),
)
def test_documents_between_separators(new_file, ranges, data, separator, cell_bytes, borders, suffix):
    read = Read(read="x", separator=separator)
    stored = compress_frame(data, "zstd") if suffix else data
    file = new_file(f"x.txt{suffix}", stored)
    reader = open_reader(read, file, plan_schema(read, [file], keeps_record=True), cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    documents = data.split(separator.encode())
    if not documents[-1]:
        documents.pop()
    good = [document for document in documents if document.strip() and _is_utf8(document)]
    assert whole.texts == [document.decode() for document in good]
    assert whole.num_blank == sum(not document.strip() for document in documents)
    assert whole.reasons == ["invalid_utf8"] * sum(not _is_utf8(document) for document in documents)
    assert ranges(reader, borders) == whole
    for record in whole.records:
        assert data[record["origin"]["position"] :].startswith(record["text"].encode())


def _is_utf8(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("data", "expected"),
    {
        b"one\r\ntwo\0\n": (1, 0, Counter()),
        b"\xef\xbb\xbfone": (1, 0, Counter()),
        b"": (0, 1, Counter()),
        b" \n\t": (0, 1, Counter()),
        b"\xff\xfe": (0, 0, Counter(invalid_utf8=1)),
        b"x" * 101: (0, 0, Counter(too_large=1)),
        b"x" * 100: (1, 0, Counter()),
    }.items(),
)
def test_a_document_a_file(new_file, read_all, data, expected):
    for name, stored in {"x.txt": data, "x.txt.gz": gzip.compress(data)}.items():
        outcome = read_all(Read(read="x", max_record_bytes=100), new_file(name, stored))
        assert outcome.counted() == expected
        assert len(outcome.cells) == 1
        if outcome.records:
            assert outcome.texts == [data.decode("utf-8-sig")]


def test_damaged_files_give_no_half_document(new_file, read_all):
    packed = gzip.compress(bytes(range(65, 91)) * 100)[:-10]
    outcome = read_all(Read(read="x"), new_file("x.txt.gz", packed))
    assert not outcome.records
    assert outcome.reasons in (["truncated_stream"], ["corrupt_stream"])
    packed = gzip.compress(b"one\n\ntwo\n\nthree")[:-4]
    outcome = read_all(Read(read="x", separator="\n\n"), new_file("x.txt.gz", packed))
    assert outcome.texts == ["one", "two"]
    assert (outcome.bad[0].position, outcome.bad[0].raw) == (10, b"three")
