"""The compiled reader of texts gives up, or gives what msgspec gives; it looks at no byte behind the last line end."""

import ctypes
import json
import mmap

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.records import ORIGIN_TYPE, SourceFile
from gristmill.steps.read import Read
from gristmill.steps.read.json_files import json_lines
from gristmill.steps.read.json_files.json_lines import JsonLinesReader
from gristmill.steps.read.json_files.plain_lines import PlainLines
from gristmill.steps.read.raw_cells.delimited_file import DelimitedFile, RawCell

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.one_of(st.integers(-(10**16), 10**16), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "tex", "text2", "é", ""]), VALUES, max_size=3)
LINES = st.builds(
    lambda before, text, after, ascii_only, separators: json.dumps(
        {**before, "text": text, **{f"z{key}": value for key, value in after.items()}},
        ensure_ascii=ascii_only,
        separators=separators,
    ).encode(),
    OBJECTS,
    TEXTS,
    OBJECTS,
    st.booleans(),
    st.sampled_from([(", ", ": "), (",", ":"), ("\t ,", " :\r")]),
)
PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in range(256) if byte != 0x0A),
        b'"text":1,',
        b'"text":"",',
        b"\\ud83d",
        b"\\u00e9",
        b"1e5",
    ]
)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), PIECES), max_size=3)

NOT_PLAIN = [
    b'{"text":"a"',
    b'{"text":"a"}}',
    b'{"text":"a"} {"text":"b"}',
    b'{"text":"a","text":"b"}',
    b'{"te\\u0078t":"a"}',
    b'{"text":"\\ud800"}',
    b'{"text":"\\udc00"}',
    b'{"text":"\\ud800\\u0041"}',
    b'{"text":"\\q"}',
    b'{"text":"\\u12g4"}',
    b'{"text":"a\x01"}',
    b'{"text":null}',
    b'{"text":{"text":"a"}}',
    b'{"other":{"text":"a"}}',
    b'{"text":"a","n":01}',
    b'{"text":"a","n":1.}',
    b'{"text":"a","n":-}',
    b'{"text":"a","n":1e}',
    b'{"text":"a","n":+1}',
    b'{"text":"a","n":nul}',
    b'{"text":"a","n":truex}',
    b'{"text":"a",}',
    b'{"text":"a","n":[1,]}',
    b'{"text":"a","n":[}',
    b'{"text":"a","n":{"b"}}',
    b'{"text":"a","n":{"b":1]}',
    b'{"text" "a"}',
    b'{"text":"a\xff"}',
    b'["text"]',
    b"",
    b" ",
    b' {"text":"a"}',
    b'{"text":"a","n":' + b"[" * 61 + b"]" * 61 + b"}",
]
PLAIN = {
    b'{"text":""}': "",
    b'{ "text" : "a" }\r': "a",
    b'{"text":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20ac\\ud83d\\ude00"}': '"\\/\b\f\n\r\t\u00e9\u20ac\U0001f600',
    b'{"a":{"text":"no","b":[{},[],[1,-0.5e-7,true,false,null]]},"text":"yes"}': "yes",
    b'{"text":"yes","a":"' + b"x" * 100 + b'","b":[]}': "yes",
    b'{"text":"a","n":[1e999,-12345678901234567890123,1E+5]}': "a",
    '{"text":"12345678é9"}'.encode(): "12345678é9",
}


class Line(msgspec.Struct):
    text: str


def make_cell(data):
    return RawCell(0, 0, memoryview(data), is_terminated=True, num_left_out=0)


def read_plain(lines):
    return PlainLines("text", 1 << 20).read(make_cell(b"".join(line + b"\n" for line in lines)))


@pytest.mark.parametrize("line", PLAIN)
def test_reads_a_plain_line(line):
    cut, texts = read_plain([line, line])
    assert texts.to_pylist() == [PLAIN[line]] * 2
    assert list(map(bytes, cut)) == [line] * 2


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_gives_up_on_other_lines(line):
    good = b'{"text":"a"}'
    assert read_plain([good, line, good]) is None


def edit(line, edits):
    for place, num_removed, piece in edits:
        at = int(place * len(line))
        line = line[:at] + piece + line[at + num_removed :]
    return line


@settings(max_examples=200)
@given(st.lists(st.tuples(LINES, st.one_of(st.just([]), st.just([]), EDITS)), min_size=1, max_size=4))
@example([(b'{"text":"a","n":12345678901234567890}', [])])
def test_agrees_with_msgspec_or_gives_up(edited):
    lines = [edit(line, edits) for line, edits in edited]
    plain_lines = read_plain(lines)
    if plain_lines is None:
        return
    cut, texts = plain_lines
    texts.validate(full=True)
    assert list(map(bytes, cut)) == lines
    assert texts.to_pylist() == [msgspec.json.decode(line, type=Line).text for line in lines]


@settings(max_examples=50)
@given(st.lists(st.builds(lambda text, a: json.dumps({"a": a, "text": text}).encode(), TEXTS, NUMBERS), min_size=1))
def test_reads_what_programs_write(lines):
    cut, texts = read_plain(lines)
    assert texts.to_pylist() == [json.loads(line)["text"] for line in lines]
    assert len(cut) == len(lines)


@settings(max_examples=30)
@given(st.lists(LINES, min_size=1, max_size=3), st.booleans())
def test_a_reader_gives_the_same_batch_either_way(lines, keeps_record):
    data = b"".join(line + b"\n" for line in lines)
    schema = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string())])
    if keeps_record:
        schema = schema.append(pa.field("record", pa.large_binary()))
    file = SourceFile(path="a.jsonl", relative="a.jsonl", num_bytes=len(data), version="", id=7)
    batches = []
    for min_bytes in (0, len(data) + 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_lines, "MIN_PLAIN_BYTES", min_bytes)
            reader = JsonLinesReader(Read(read="a.jsonl"), DelimitedFile(file, b"\n", 1 << 20), schema)
            batches.append(reader.parse(make_cell(data)).batch)
    assert batches[0].equals(batches[1])


def test_gives_up_where_a_record_is_too_large_or_the_last_line_has_no_end():
    line = b'{"text":"abc"}'
    assert PlainLines("text", len(line)).read(make_cell(line + b"\n")) is not None
    assert PlainLines("text", len(line) - 1).read(make_cell(line + b"\n")) is None
    assert PlainLines("text", len(line)).read(make_cell(line)) is None


def test_looks_at_nothing_behind_the_last_line_end():
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    guard = np.frombuffer(memory, np.uint8)
    address = guard.ctypes.data + page
    assert libc.mprotect(ctypes.c_void_p(address), page, 0) == 0
    try:
        for line in [*PLAIN, *NOT_PLAIN]:
            for size in range(len(line) + 1):
                data = line[:size] + b"\n"
                memory[page - len(data) : page] = data
                PlainLines("text", 1 << 20).read(make_cell(memoryview(memory)[page - len(data) : page]))
    finally:
        libc.mprotect(ctypes.c_void_p(address), page, mmap.PROT_READ | mmap.PROT_WRITE)
