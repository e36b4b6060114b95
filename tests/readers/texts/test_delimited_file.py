"""Separated records in raw cells: any ranges and any compression give the same."""

import io
import itertools
import json

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import CorruptStreamError
from gristmill.core.records import ORIGIN_TYPE
from gristmill.readers.cells import CELL_BYTES
from gristmill.readers.read import Read
from gristmill.readers.source import open_reader
from gristmill.storage.codecs import compress_frame, decompress

TEXT_ONLY = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string())])


WITH_RECORD = TEXT_ONLY.append(pa.field("record", pa.large_binary()))


CODECS = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "xz": ".xz", "lz4": ".lz4"}


GOOD = st.builds(
    lambda text, extra, ascii_only: json.dumps({**extra, "text": text}, ensure_ascii=ascii_only).encode(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.dictionaries(
        st.sampled_from("abc"), st.one_of(st.none(), st.integers(), st.text("xy"), st.lists(st.booleans()))
    ),
    st.booleans(),
)


BAD = st.sampled_from(
    [
        b"{",
        b"nonsense",
        b'{"text": "a"} {"text": "b"}',
        b'["text"]',
        b"3",
        b"{}",
        b'{"text": null}',
        b'{"text": 5}',
        b'{"text": ["a"]}',
        b'{"text": "\xff"}',
        b'{"text": "a", "x": "\xc3"}',
        b'{"text": "\\ud800"}',
        b'{"text": "a", "b": "\\udc00 "}',
        b'{"text": "a", "x": NaN}',
        b'{"text": "a\x00b"}',
        b'\xef\xbb\xbf{"text": "a"}',
    ]
)


BLANK = st.sampled_from([b"", b" ", b"\t \r", b"\r"])


LINE = st.one_of(GOOD, GOOD, BAD, BLANK, st.binary(max_size=8).map(lambda data: data.replace(b"\n", b"")))


FILES = st.builds(
    lambda mark, lines, ends, has_end: (
        mark
        + b"".join(line + end for line, end in zip(lines, ends, strict=False))
        + (b"" if has_end else b'{"text": "last"}')
    ),
    st.sampled_from([b"", b"", b"\xef\xbb\xbf"]),
    st.lists(LINE, max_size=12),
    st.lists(st.sampled_from([b"\n", b"\n", b"\r\n"]), min_size=12, max_size=12),
    st.booleans(),
)


BORDERS = st.lists(st.integers(0, 40), max_size=4).map(lambda inner: [0, *sorted(inner), None])


def reference(data):
    """What a loop over json.loads makes of a file: records with their positions, blank lines, bad lines."""
    records, blank, bad = [], 0, []
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    lines = data[start:].split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        if not line.strip(b" \t\r"):
            blank += 1
        else:
            try:
                value = json.loads(line.decode(), parse_constant=_refuse)
                json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates
                assert isinstance(value, dict)
                assert isinstance(value["text"], str)
                records.append((start, value["text"]))
            except (ValueError, KeyError, AssertionError):
                bad.append(start)
        start += len(line) + 1
    return records, blank, bad


def _refuse(constant):
    raise ValueError(constant)


@settings(max_examples=120, deadline=None)
@given(data=FILES, cell_bytes=st.integers(4, 60), borders=BORDERS)
def test_any_ranges_give_what_a_plain_loop_gives(new_file, ranges, data, cell_bytes, borders):
    read = Read(read="x", max_record_bytes=10_000)
    file = new_file("x.jsonl", data)
    reader = open_reader(read, file, TEXT_ONLY, cell_bytes=cell_bytes)
    whole = ranges(reader, [0, None])
    records, num_blank, bad = reference(data)
    assert list(zip(whole.positions, whole.texts, strict=True)) == records
    assert whole.num_blank == num_blank
    assert [record.position for record in whole.bad] == bad
    assert ranges(reader, borders) == whole
    assert len(whole.cells) == len(reader.cell_sizes())
    assert [cell for cell, *_ in whole.cells] == list(range(len(whole.cells)))
    assert sum(reader.cell_sizes()) == len(data)


@settings(max_examples=60, deadline=None)
@given(data=FILES, cell_bytes=st.integers(4, 60), borders=BORDERS, limit=st.integers(1, 30))
def test_size_limit_does_not_depend_on_ranges(new_file, ranges, data, cell_bytes, borders, limit):
    reader = open_reader(
        Read(read="x", max_record_bytes=limit), new_file("x.jsonl", data), TEXT_ONLY, cell_bytes=cell_bytes
    )
    whole = ranges(reader, [0, None])
    assert ranges(reader, borders) == whole
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    too_large = [bad for bad in whole.bad if bad.reason == "too_large"]
    assert [bad.num_bytes for bad in too_large] == [len(line) for line in lines if len(line) > limit]
    assert all(bad.raw is None for bad in too_large)
    num_lines = len(lines) - (not lines[-1])
    assert len(whole.records) + whole.num_blank + len(whole.bad) == num_lines


@settings(max_examples=80, deadline=None)
@given(
    data=FILES,
    cuts=st.lists(st.integers(0, 200), max_size=3),
    codec=st.sampled_from(sorted(CODECS)),
    cell_bytes=st.integers(4, 60),
    cells_a_piece=st.integers(1, 5),
    borders=BORDERS,
)
def test_compressed_and_unpacked_equal_plain(
    new_file, ranges, unpack, data, cuts, codec, cell_bytes, cells_a_piece, borders
):
    read = Read(read="x")
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    packed = b"".join(compress_frame(data[start:stop], codec) for start, stop in itertools.pairwise(bounds))
    file = new_file(f"x.jsonl{CODECS[codec]}", packed)
    plain = ranges(open_reader(read, new_file("x.jsonl", data), WITH_RECORD, cell_bytes=cell_bytes), [0, None])
    reader = open_reader(read, file, WITH_RECORD, cell_bytes=cell_bytes)
    assert not reader.can_cut
    assert ranges(reader, [0, None]) == plain
    assert ranges(reader, borders) == plain
    assert unpacked_outcome(read, file, WITH_RECORD, unpack, ranges, cells_a_piece, cell_bytes) == plain


def unpacked_outcome(read, file, schema, unpack, ranges, cells_a_piece, cell_bytes):
    """All pieces of a file, read one cell at a time."""
    outcomes = []
    for piece in unpack(read, file, cells_a_piece, cell_bytes):
        reader = open_reader(read, file, schema, piece=piece, cell_bytes=cell_bytes)
        assert reader.can_cut
        outcome = ranges(reader, range(piece.first_cell, piece.first_cell + piece.num_cells + 1))
        assert ranges(reader, [0, None]) == outcome
        outcomes.append(outcome)
    joined = ranges(None, [0])
    for outcome in outcomes:
        joined.cells += outcome.cells
        joined.records += outcome.records
        joined.num_blank += outcome.num_blank
        joined.bad += outcome.bad
    return joined


def is_damaged(packed, codec):
    try:
        for _ in decompress(io.BytesIO(packed), codec):
            pass
    except CorruptStreamError:
        return True
    return False


@settings(max_examples=80, deadline=None)
@given(
    # A stream that ends between two objects of one line looks as if the first were a whole line.
    lines=st.lists(LINE.filter(lambda line: b"} {" not in line), min_size=1, max_size=8),
    codec=st.sampled_from(sorted(CODECS)),
    keep=st.floats(0, 1, exclude_max=True),
    cell_bytes=st.integers(4, 60),
    cells_a_piece=st.integers(1, 5),
    borders=BORDERS,
)
def test_truncated_stream_is_used_as_far_as_it_goes(
    new_file, ranges, unpack, lines, codec, keep, cell_bytes, cells_a_piece, borders
):
    data = b"\n".join(lines) + b"\n"
    packed = b"".join(compress_frame(data[start : start + 40], codec) for start in range(0, len(data), 40))
    packed = packed[: 1 + int(len(packed) * keep)]
    read = Read(read="x")
    file = new_file(f"x.jsonl{CODECS[codec]}", packed)
    reader = open_reader(read, file, WITH_RECORD, cell_bytes=cell_bytes)
    outcome = ranges(reader, [0, None])
    damage = [bad for bad in outcome.bad if bad.reason in ("truncated_stream", "corrupt_stream")]
    assert len(damage) == is_damaged(packed, codec)
    expected, _, bad = reference(data)
    found = list(zip(outcome.positions, outcome.texts, strict=True))
    assert found == expected[: len(found)]
    if damage:
        end = damage[0].position
        assert found == [record for record in expected if record[0] < end]
        assert [other.position for other in outcome.bad if other not in damage] == [at for at in bad if at < end]
    assert ranges(reader, borders) == outcome
    assert unpacked_outcome(read, file, WITH_RECORD, unpack, ranges, cells_a_piece, cell_bytes) == outcome


def test_real_cells_and_a_line_across_many_of_them(new_file, ranges):
    lines = [json.dumps({"text": "x" * size}).encode() for size in (10, CELL_BYTES * 3, 10, CELL_BYTES - 30, 5, 5)]
    reader = open_reader(Read(read="x"), new_file("x.jsonl", b"\n".join(lines)), TEXT_ONLY)
    whole = ranges(reader, [0, None])
    assert [len(text) for text in whole.texts] == [10, CELL_BYTES * 3, 10, CELL_BYTES - 30, 5, 5]
    assert [rows for _, rows, *_ in whole.cells] == [2, 0, 0, 2, 2]
    for border in range(6):
        assert ranges(reader, [0, border, None]) == whole
