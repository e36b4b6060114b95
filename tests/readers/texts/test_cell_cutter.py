"""Cutting at separators: the same records whatever range they are reached from, also with separators that overlap."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.readers.texts.cell_cutter import CellCutter, ChunkStream, find_safe_start, overlaps_itself

SEPARATORS = st.sampled_from([b"\n", b"ab", b"aa", b"aba", b"abab", b"--\n"])
DATA = st.lists(st.sampled_from([b"a", b"b", b"\n", b"ab", b"-", b"--\n", b"x"]), max_size=40).map(b"".join)


def cells_of(data, separator, cell_bytes):
    """The rule, written down plainly: each record, with its separator, goes to the cell in which it starts."""
    cells = [b""] * -(-len(data) // cell_bytes)
    start = 0
    while start < len(data):
        end = data.find(separator, start)
        end = len(data) if end < 0 else end + len(separator)
        cells[start // cell_bytes] += data[start:end]
        start = end
    return cells


@settings(max_examples=500, deadline=None)
@given(data=DATA, separator=SEPARATORS, cell_bytes=st.integers(1, 12), chunk=st.integers(1, 7), seed=st.data())
@example(data=b"a" * 30, separator=b"aa", cell_bytes=3, chunk=2, seed=None)
def test_cells_hold_the_records_that_start_in_them(new_file, data, separator, cell_bytes, chunk, seed):
    expected = cells_of(data, separator, cell_bytes)
    first = seed.draw(st.integers(0, len(expected))) if seed else 4
    stop = seed.draw(st.one_of(st.none(), st.integers(first, len(expected) + 1))) if seed else None
    path = new_file("x", data).path
    start = find_safe_start(path, 0, first * cell_bytes, separator) if first else 0
    assert start <= max(0, first * cell_bytes - len(separator))
    chunks = (data[at : at + chunk] for at in range(start, len(data), chunk))
    cutter = CellCutter(ChunkStream(chunks), start, separator, cell_bytes)
    found = {cell: b"".join(bytes(piece) for piece in pieces) for cell, pieces in cutter.cells(first, stop)}
    assert found == dict(list(enumerate(expected))[first:stop])


@pytest.mark.parametrize("separator", [b"aa", b"aba", b"\n\n"])
def test_a_long_run_of_overlapping_separators(new_file, separator):
    data = b"xy" + (separator[:1] + separator[1:2]) * 100_000 + b"z"
    file = new_file("x", data)
    at = len(data) - 5
    start = find_safe_start(file.path, 0, at, separator)
    assert data[start:].split(separator)[1:] == data.split(separator)[-len(data[start:].split(separator)) + 1 :]


def test_overlapping_separators_are_known():
    assert [overlaps_itself(separator) for separator in (b"\n", b"ab", b"aa", b"aba", b"<|end|>")] == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_a_long_record_is_given_in_pieces():
    chunks = (b"x" * (1 << 20) for _ in range(20))
    cutter = CellCutter(ChunkStream(chunks), 0, b"\n", cell_bytes=100)
    _, pieces = next(cutter.cells(0, None))
    sizes = [len(piece) for piece in pieces]
    assert sum(sizes) == 20 << 20
    assert max(sizes) <= (2 << 20) + 100
