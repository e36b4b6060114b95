"""JSON lines: any ranges give the same, every line is accounted for once, each bad line by its reason."""

import gzip
import io
import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.records import ORIGIN_TYPE, SourceFile
from gristmill.steps.read import CELL_BYTES, Read, open_reader, plan_schema
from gristmill.steps.read.json_files.json_fields import JsonFields
from gristmill.steps.read.json_files.json_lines import JsonLinesReader
from gristmill.steps.read.raw_cells.delimited_file import DelimitedFile
from gristmill.storage.codecs.compression import compress_frame, decompress

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


REASONS = {
    b"{": "invalid_json",
    b'{"text": "a"': "invalid_json",
    b'{"text": "a"} {"text": "b"}': "invalid_json",
    b'{"text": "a"}{"text": "b"}': "invalid_json",
    b'{"text": 1, nonsense': "invalid_json",
    b"{'text': 'a'}": "invalid_json",
    b'{"text": "a", "x": NaN}': "invalid_json",
    b'{"text": "a", "x": 01}': "invalid_json",
    b'{"text": "a\x00"}': "invalid_json",
    b'{"text": "a\tb"}': "invalid_json",
    b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "invalid_json",
    b"[]": "not_an_object",
    b'"text"': "not_an_object",
    b"null": "not_an_object",
    b"{}": "missing_text",
    b'{"Text": "a"}': "missing_text",
    b'{"text": null}': "null_text",
    b'{"text": 1}': "text_not_a_string",
    b'{"text": {"text": "a"}}': "text_not_a_string",
    b'{"text": 1e999}': "text_not_a_string",
    b'{"text": "\xff"}': "invalid_utf8",
    b'{"text": "\xed\xa0\x80"}': "invalid_utf8",
    b'{"text": "a", "\xc3": 1}': "invalid_utf8",
    b'{"text": "\\ud800"}': "lone_surrogate",
    b'{"text": "a \\udc00\\ud800 b"}': "lone_surrogate",
    b'{"text": "a", "x": ["\\ud83d"]}': "lone_surrogate",
}


@pytest.mark.parametrize("line", REASONS, ids=lambda line: repr(line[:30]))
def test_each_bad_line_has_its_reason_and_harms_no_neighbour(new_file, read_all, line):
    good = b'{"text": "good"}\n'
    outcome = read_all(Read(read="x"), new_file("x.jsonl", good + line + b"\n" + good))
    assert outcome.texts == ["good", "good"]
    (bad,) = outcome.bad
    assert (bad.reason, bad.position, bad.raw, bad.num_bytes) == (REASONS[line], len(good), line, len(line))
    assert bad.message


GOOD_LINES = {
    b'{"text": "a\\u0000b"}': "a\0b",
    b'{"text": ""}': "",
    b'{"text": "\\ud83d\\ude00"}': "\U0001f600",
    b' \t{"text" : "a"}  ': "a",
    b'{"text": "a", "text": "b"}': "b",
    b'{"te\\u0078t": "a"}': "a",
    '{"text": "\u2028\x85\x0b"}'.replace("\x0b", "\\u000b").encode(): "\u2028\x85\x0b",
    b'{"text": "a", "x": 1e999}': "a",
    b'{"text": "a", "x": ' + b"[" * 300 + b"]" * 300 + b"}": "a",
}


@pytest.mark.parametrize("line", GOOD_LINES, ids=lambda line: repr(line[:30]))
def test_good_lines(new_file, read_all, line):
    outcome = read_all(Read(read="x"), new_file("x.jsonl", line), keeps_record=True)
    assert outcome.texts == [GOOD_LINES[line]]
    assert outcome.records[0]["record"] == line


def test_verdict_on_deep_nesting_does_not_depend_on_the_callers_stack(new_file, read_all):
    def deeper(depth, call):
        return call() if depth == 0 else deeper(depth - 1, call)

    for nesting in range(600, 1000, 40):
        line = b'{"text": "a", "x": ' + b"[" * nesting + b"]" * nesting + b"}"
        file = new_file("x.jsonl", line)
        shallow = read_all(Read(read="x"), file, schema=TEXT_ONLY).counted()
        deep = deeper(400, lambda file=file: read_all(Read(read="x"), file, schema=TEXT_ONLY).counted())
        assert shallow == deep


def test_empty_file(new_file, read_all):
    for name, data in {"x.jsonl": b"", "x.jsonl.gz": gzip.compress(b""), "y.jsonl": b"\xef\xbb\xbf"}.items():
        assert read_all(Read(read="x"), new_file(name, data)).counted() == (0, 0, Counter())


def test_byte_order_mark_and_windows_lines(new_file, read_all):
    data = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}\r\n'
    outcome = read_all(Read(read="x"), new_file("x.jsonl", data), keeps_record=True)
    assert outcome.texts == ["a", "b"]
    assert outcome.num_blank == 1
    assert [record["record"] for record in outcome.records] == [b'{"text": "a"}', b'{"text": "b"}']
    for record in outcome.records:  # a position is where the record can be found again
        assert data[record["origin"]["position"] :].startswith(record["record"])


def test_nested_text_and_columns(new_file, read_all):
    lines = [
        {"payload": {"body": "a", "score": 1}, "id": "x", "tags": ["t", None]},
        {"payload": {"body": "b", "score": 0.5}, "id": None},
        {"payload": {"body": "c"}, "meta": {"ok": True}},
        {"payload": "d"},
        {"payload": {"body": "e", "score": "high"}},
    ]
    read = Read(read="x", text="payload.body", columns=["id", "payload.score", "meta.ok", "tags"])
    sample = new_file("x.jsonl", "\n".join(map(json.dumps, lines[:3])).encode())
    schema = plan_schema(read, [sample], keeps_record=False)
    assert schema.types[2:] == [pa.large_string(), pa.float64(), pa.bool_(), pa.large_list(pa.large_string())]
    outcome = read_all(read, new_file("x.jsonl", "\n".join(map(json.dumps, lines)).encode()), schema=schema)
    rows = [tuple(record[name] for name in schema.names[1:]) for record in outcome.records]
    assert rows == [
        ("a", "x", 1.0, None, ["t", None]),
        ("b", None, 0.5, None, None),
        ("c", None, None, True, None),
    ]
    assert outcome.reasons == ["missing_text", "column_type"]


def test_origin_names_file_and_part(new_file, read_all):
    outcome = read_all(Read(read="x"), new_file("x.jsonl", b'\n{"text": "a"}'))
    assert outcome.records[0]["origin"] == {"file": 7, "position": 1, "part": 0}


def test_real_cells_and_a_line_across_many_of_them(new_file, ranges):
    lines = [json.dumps({"text": "x" * size}).encode() for size in (10, CELL_BYTES * 3, 10, CELL_BYTES - 30, 5, 5)]
    reader = open_reader(Read(read="x"), new_file("x.jsonl", b"\n".join(lines)), TEXT_ONLY)
    whole = ranges(reader, [0, None])
    assert [len(text) for text in whole.texts] == [10, CELL_BYTES * 3, 10, CELL_BYTES - 30, 5, 5]
    assert [rows for _, rows, *_ in whole.cells] == [2, 0, 0, 2, 2]
    for border in range(6):
        assert ranges(reader, [0, border, None]) == whole


AWKWARD = [
    b'{"text": "a"}',
    b'{"text": "b", "more": {"c": [1]}}',
    b'{"text": "a"} {"text": "b"}',
    b'{"text": "a"}{"text": "b"}',
    b'{"text":',
    b'"a"}',
    b'{"text": {"x": 1}',
    b'{"x": {}}',
    b'{"text": "a"}\r',
    b"",
    b"  ",
    b"}",
    b"{",
    b'{"text": 5}',
    b'{"text": "\xff"}',
    b'{"text": "}{"}',
]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(AWKWARD), max_size=8), st.sampled_from([b"\n", b""]))
def test_lines_decoded_together_are_as_each_alone(lines, end):

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(b"\n".join(lines) + end)
        file = SourceFile(path=str(path), relative="a.jsonl", num_bytes=path.stat().st_size, version="", id=1)
        read = Read(read=str(path))

        def outcome(*, together):
            cells = DelimitedFile(file, b"\n", read.max_record_bytes, None, 4 << 20)
            reader = JsonLinesReader(read, cells, TEXT_ONLY)
            if not together:
                reader._decode_together = lambda cut: None
            found = list(reader.read_cells())
            return [
                (cell.batch.to_pylist(), cell.num_blank, [(bad.position, bad.reason) for bad in cell.quarantined])
                for cell in found
            ]

        assert outcome(together=True) == outcome(together=False)


@pytest.mark.parametrize("name", ['a"b', "c\\d", "e\tf"])
def test_a_name_that_the_decoder_cannot_have_is_an_error_for_people(name):
    with pytest.raises(UsageError, match="a quote, a backslash or a control character"):
        JsonFields("text", {name: pa.int64()})
