"""JSON lines: any ranges give the same, every line is accounted for once, each bad line by its reason."""

import gzip
from collections import Counter

import pyarrow as pa

from gristmill.core.records import ORIGIN_TYPE
from gristmill.readers.read import Read

TEXT_ONLY = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string())])


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


def test_origin_names_file_and_part(new_file, read_all):
    outcome = read_all(Read(read="x"), new_file("x.jsonl", b'\n{"text": "a"}'))
    assert outcome.records[0]["origin"] == {"file": 7, "position": 1, "part": 0}
