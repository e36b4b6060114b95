"""JSON arrays: told by content, cut anywhere alike, every element accounted for, positions that lead back to it."""

import gzip
import itertools
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN_TYPE, SourceFile
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.readers.texts.json_array import find_elements_in
from gristmill.storage.codecs import compress_frame

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text('ab"],[{}\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
RECORDS = st.builds(
    lambda text, more: {**more, "text": text},
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.dictionaries(st.sampled_from("abc"), VALUES, max_size=2),
)
STYLES = st.builds(
    dict,
    indent=st.sampled_from([None, None, 0, 2]),
    ensure_ascii=st.booleans(),
    separators=st.sampled_from([None, (",", ":")]),
)
BORDERS = st.lists(st.integers(0, 40), max_size=4).map(lambda inner: [0, *sorted(inner), None])
CELL = 16
WITH_RECORD = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string()), ("record", pa.large_binary())])


def reader_of(data, name="a.json", *, cell_bytes=CELL, **keys):
    folder = tempfile.mkdtemp()
    path = Path(folder, name)
    path.write_bytes(data)
    file = SourceFile(str(path), name, len(data), "1", 7)
    read = Read(read=str(path), **keys)
    schema = WITH_RECORD if "field" not in keys else plan_schema(read, [file], keeps_record=True)
    return open_reader(read, file, schema, cell_bytes=cell_bytes)


def read_whole(data, name="a.json", **keys):
    return read_in(reader_of(data, name, **keys), [0, None])


def read_in(reader, borders):
    records, bad = [], []
    for first, stop in itertools.pairwise(borders):
        for cell in reader.read_cells(first, stop):
            records += cell.batch.to_pylist()
            bad += cell.quarantined
    return records, bad


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, max_size=8), STYLES, BORDERS, st.sampled_from(["", ".gz", ".zst"]), st.booleans())
def test_any_ranges_give_the_elements(records, style, borders, suffix, inside):
    data = json.dumps({"version": [1, 2], "data": records, "more": {"x": "]"}} if inside else records, **style).encode()
    packed = {"": data, ".gz": gzip.compress(data), ".zst": compress_frame(data, "zstd")}[suffix]
    reader = reader_of(packed, "a.json" + suffix, **({"field": "data"} if inside else {}))
    whole, bad = read_in(reader, [0, None])
    assert not bad
    assert [json.loads(record["record"]) for record in whole] == records
    assert all(b"\n" not in record["record"] for record in whole)
    for record in whole:  # the position is that of the element's first byte
        rest = data[record["origin"]["position"] :]
        assert json.JSONDecoder().raw_decode(rest.decode())[0] == json.loads(record["record"])
    assert read_in(reader, borders) == (whole, [])


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=8), STYLES, st.integers(1, 4), st.integers(0, 60))
def test_pieces_give_what_the_file_gives(unpack, records, style, cells_a_piece, num_lost):
    data = json.dumps(records, **style).encode()
    packed = gzip.compress(data, mtime=0)
    packed = packed[: max(12, len(packed) - num_lost)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.json.gz")
        path.write_bytes(packed)
        file = SourceFile(str(path), "a.json.gz", len(packed), "1", 7)
        read = Read(read=str(path))
        try:
            schema = plan_schema(read, [file], keeps_record=True)
        except UsageError:
            return
        whole = read_in(open_reader(read, file, schema, cell_bytes=CELL), [0, None])
        found, bad = [], []
        for piece in unpack(read, file, cells_a_piece, CELL):
            part = read_in(open_reader(read, file, schema, piece=piece, cell_bytes=CELL), [0, None])
            found, bad = found + part[0], bad + part[1]
        assert (found, bad) == whole
        if num_lost:
            assert [each.reason for each in bad][-1:] in (["truncated_stream"], ["corrupt_stream"])


BROKEN = {
    b"3": "not_an_object",
    b'"text"': "not_an_object",
    b"null": "not_an_object",
    b'{"text": tru}': "invalid_json",
    b'{"text": "a" "b"}': "invalid_json",
    b'{"text": [1, 2}': "invalid_json",
    b'{"text": "a"}}': "invalid_json",
    b"": "invalid_json",
    b"{}": "missing_text",
    b'{"text": 5}': "text_not_a_string",
    b'{"text": "\xff"}': "invalid_utf8",
    b'{"text": "' + b"x" * 400 + b'"}': "too_large",
    b'{"text": "a", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": None,
}


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_element_is_quarantined_alone(broken, place):
    elements = [b'{"text": "a"}', b'{"text": "b"}']
    elements.insert(place, broken)
    data = b"[" + b", ".join(elements) + b"]"
    limit = 300 if BROKEN[broken] == "too_large" else 64 << 20
    for cell_bytes in (CELL if len(broken) < 1000 else 1 << 10, 1 << 20):
        records, bad = read_whole(data, cell_bytes=cell_bytes, max_record_bytes=limit)
        assert [record["text"] for record in records] == ["a", "b"]
        [bad] = bad
        assert bad.reason == (BROKEN[broken] or bad.reason)
        assert data[bad.position :].startswith(broken)
        assert bad.raw in (broken, None)


@pytest.mark.parametrize("end", [b"", b", ", b', {"text": "c', b', {"text": "c", "d": ['])
def test_a_truncated_array_says_so(end):
    data = b'[{"text": "a"}, {"text": "b"}' + end
    for cell_bytes in (CELL, 1 << 20):
        records, bad = read_whole(data, cell_bytes=cell_bytes)
        assert [record["text"] for record in records] == ["a", "b"]
        assert [each.reason for each in bad] == ["truncated_array"]


def test_an_array_that_ends_inside_an_element_is_accounted_for_to_its_end():
    lines = [json.dumps({"text": f"record {number}"}).encode() for number in range(100)]
    data = b'{"records": [' + b", ".join(lines) + b"]}"
    end = data.index(b"}")
    damaged = data[:end] + b"]" + data[end + 1 :]
    records, bad = read_whole(damaged, field="records")
    assert len(records) == 0
    assert sum(each.num_bytes for each in bad) >= len(data) - end - 10


def test_what_follows_an_array_is_quarantined():
    records, bad = read_whole(b'[{"text": "a"}]\n[{"text": "b"}]\n')
    assert [record["text"] for record in records] == ["a"]
    assert [(each.reason, each.position, each.raw) for each in bad] == [("after_array", 16, b'[{"text": "b"}]')]


LAYOUTS = [
    (b'{"text": "a"}\n{"text": "b"}\n', None),
    (b'\xef\xbb\xbf{"text": "a"}\n\n{"text": "b"}', None),
    (b'{"text": "a"}', None),
    (b'{"text": "a", "data": [{"text": "b"}]}', None),
    (b'{"messages": [{"role": "user", "content": "a"}]}', None),
    (b'{"conversations": [{"value": "a", "from": "human"}], "x": 1}', None),
    (b'{"text": "a\n{"text": "b"}\n', None),
    (b'{"a": [{"text": "a"}], "b": [{"text": "b"}]}', None),
    (b"nonsense\n[", None),
    (b"", None),
    (b" \n", None),
    (b'[{"text": "a"}]', (0, True)),
    (b'\xef\xbb\xbf \n [{"text": "a"}]', (6, True)),
    (b'{"version": "1", "data": [{"text": "a"}]}', (25, True)),
    (b'{"data":\n [\n{"text": "a"}\n], "b": [1, 2]}', (10, True)),
    (b'{\n"text": "a",\n"b": 2}\n', (0, False)),
    (b'{\n"a": [{"text": "a"}],\n "b": [{"text": "b"}]}\n', (0, False)),
]


@pytest.mark.parametrize(("data", "expected"), LAYOUTS)
def test_the_layout_is_told_by_content(data, expected):
    found = find_elements_in(Read(read="a.json"), "a.json", data)
    assert (None if found is None else (found.start, found.is_array)) == expected


@pytest.mark.parametrize("size", [1000, 3 << 20])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"text": "%b"}\n{"text": "b"}\n', None),
        (b'{"data": [{"text": "%b"}, {"text": "b"}]}', (9, True)),
        (b'{"data": [{"text": "%b"}, {"text": "b"}]}\n \n', (9, True)),
        (b'{"data": [{"text": "%b"},\n{"text": "b"}]}\n', (9, True)),
    ],
)
def test_a_long_first_line_is_told_like_a_short_one(data, expected, size):
    found = find_elements_in(Read(read="a.json"), "a.json", data % (b"x" * size))
    assert (None if found is None else (found.start, found.is_array)) == expected


def test_a_field_names_the_array():
    data = b'{"a": [{"text": "a"}], "b": {"c": [{"text": "b"}]}}'
    assert [record["text"] for record in read_whole(data, field="b.c")[0]] == ["b"]
    assert [record["text"] for record in read_whole(data, field="a")[0]] == ["a"]


@pytest.mark.parametrize(
    ("data", "field"), [(b'{"data": [{}]}', "dat"), (b'{"data": 3}', "data"), (b"[{}]", "data"), (b'{"a": []}', "a.b")]
)
def test_a_wrong_field_is_refused(data, field):
    with pytest.raises(UsageError):
        read_whole(data, field=field)


def test_a_field_is_of_json_only(tmp_path):
    with pytest.raises(UsageError):
        Read(read="a.parquet", format="parquet", field="data")
    with pytest.raises(UsageError):
        read_whole(b'{"text": "a"}\n', "a.jsonl", field="data")


def test_a_pretty_printed_record_alone_in_its_file():
    records, bad = read_whole(json.dumps({"text": "a", "b": [1, {"c": 2}]}, indent=2).encode())
    assert not bad
    assert [json.loads(record["record"]) for record in records] == [{"text": "a", "b": [1, {"c": 2}]}]


def test_numbers_and_escapes_of_a_pretty_printed_record_stay():
    data = b'[\n{"text": "\\u00e4\\/",\n "n": 1.50e+3, "m": 123456789012345678901234567890}\n]'
    [record] = read_whole(data)[0]
    assert record["record"] == b'{"text":"\\u00e4\\/","n":1.50e+3,"m":123456789012345678901234567890}'


def test_deep_nesting_alone_is_no_way_to_end_a_reader():
    for data in (b"[" * 300_000, b"[" + b'{"a":' * 300_000, b"[" + b"[" * 300_000 + b"]" * 300_000 + b"]"):
        records, bad = read_whole(data, cell_bytes=1 << 14)
        assert not records
        assert len(bad) == 1


@settings(max_examples=80, deadline=None)
@example(b'[{"text": "a"},,]')
@given(
    st.lists(
        st.sampled_from([b"[", b"]", b"{", b"}", b",", b'"', b"\\", b" ", b"\n", b"1", b'{"text":"a"}']), max_size=20
    ).map(b"".join)
)
def test_random_bytes_are_read_alike_whole_and_in_cells(data):
    """Whatever the bytes: nothing raises, and cells of any size give the same."""
    data = b"[" + data
    whole = read_whole(data, cell_bytes=1 << 20)
    assert read_whole(data, cell_bytes=3) == whole
