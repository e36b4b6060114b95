"""Compiled helpers against Python's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.text.byte_kernels import choose_table_size, count_bits, decode_code_point, load_8_bytes


@given(st.text(min_size=1))
def test_code_points_are_those_of_python(text):
    data = np.frombuffer(text.encode(errors="replace"), np.uint8)
    position, found = 0, []
    while position < len(data):
        code_point, num_bytes = decode_code_point(data, position, len(data))
        found.append(chr(code_point))
        position += num_bytes
    assert "".join(found).encode() == data.tobytes()


@given(st.binary(min_size=1))
def test_bytes_that_are_not_utf_8_end_too(content):
    data = np.frombuffer(content, np.uint8)
    position = 0
    while position < len(data):
        position += decode_code_point(data, position, len(data))[1]
    assert position == len(data)


@given(st.binary(min_size=8, max_size=8))
def test_eight_bytes_and_their_bits(content):
    number = load_8_bytes(np.frombuffer(content, np.uint8), np.uint64(0))
    assert int(number) == int.from_bytes(content, "little")
    assert int(count_bits(np.uint64(number))) == int(number).bit_count()


@given(st.integers(0, 100_000))
def test_a_table_is_at_most_half_full(count):
    size = choose_table_size(count)
    assert size >= max(16, 2 * count)
    assert size.bit_count() == 1
