import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.json_values import with_names, with_values

KEYS = st.text("abc", min_size=1, max_size=2)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('ab\n"\\é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(RECORDS, KEYS, st.none() | st.integers(-5, 5) | st.text())
def test_only_the_value_changes(record, key, value):
    try:
        changed = with_values(json.dumps(record).encode(), [((key,), value)])
    except UnicodeEncodeError:
        return
    assert json.loads(changed) == record | {key: value}
    assert b"\n" not in changed


@given(RECORDS, st.dictionaries(KEYS, KEYS, max_size=3))
def test_names_change_in_place_or_not_at_all(record, names):
    renamed = [names.get(key, key) for key in record]
    line = json.dumps(record).encode()
    if len(set(renamed)) < len(renamed):
        with pytest.raises(ValueError, match="already has"):
            with_names(line, names)
    else:
        changed = json.loads(with_names(line, names))
        assert list(changed) == renamed
        assert list(changed.values()) == list(record.values())


def test_untouched_values_keep_their_bytes():
    line = b'{"big": 123456789012345678901234567890, "e": 1.0E+2, "s": "\\u00e9", "a": 1}'
    assert with_values(line, [(("a",), 2)]) == (
        b'{"big":123456789012345678901234567890,"e":1.0E+2,"s":"\\u00e9","a":2}'
    )


def test_missing_levels_are_made():
    assert with_values(b"{}", [(("a", "b"), 1), (("a", "c"), 2)]) == b'{"a":{"b":1,"c":2}}'
