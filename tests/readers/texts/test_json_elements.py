"""Where the elements of an array begin and end: as the json module says."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.readers.texts.test_json_array import STYLES, VALUES

from gristmill.readers.texts.json_elements import ElementScanner

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=6), STYLES, st.binary(max_size=3).filter(lambda data: not data.strip(b" \n\r\t")))
def test_scanner_finds_what_json_finds(values, style, space):
    data = space + json.dumps(values, **style).encode() + space
    found = ElementScanner(is_open=False).split(data[len(space) :])
    elements = [data[len(space) :][start:stop] for start, stop in zip(found.starts, found.stops, strict=True)]
    assert [json.loads(element) for element in elements] == values
    assert data[len(space) :][found.end :].strip() == b""
