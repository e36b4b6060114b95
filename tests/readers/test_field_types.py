"""Types of columns that no recipe names: they hold every value exactly, or the column is JSON text."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.readers.field_types import infer_field_types, join_types, plain_type, without_nulls

WHOLE = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]


def infer(*values):
    return infer_field_types([{"x": value} for value in values])["x"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int64()),
        ([1, 0.5], pa.float64()),
        ([True, False], pa.bool_()),
        ([["a"], []], pa.large_list(pa.large_string())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.large_string())])),
        ([None], pa.null()),
    ],
)
def test_a_type_holds_all_values(values, kind):
    assert infer(*values).type == kind


@pytest.mark.parametrize("values", [[1, "a"], [2**63], [2**53 + 1, 0.5], [{}], [{"a\nb": 1}], [[1, "a"]], [True, 1]])
def test_what_has_no_exact_type_is_json_and_says_why(values):
    assert infer(*values).why


@given(st.sampled_from(WHOLE), st.sampled_from(WHOLE))
def test_a_joined_type_holds_the_bounds_of_both(left, right):
    joined = join_types(left, right)
    assert joined == join_types(right, left)
    bounds = [
        bound
        for kind in (left, right)
        for bound in (
            (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
            if pa.types.is_signed_integer(kind)
            else (0, 2**kind.bit_width - 1)
        )
    ]
    if joined is None:
        assert pa.uint64() in (left, right)
    else:
        assert pa.array(bounds, joined).to_pylist() == bounds


def test_encodings_are_no_types():
    assert plain_type(pa.dictionary(pa.int8(), pa.string())) == pa.large_string()
    assert plain_type(pa.list_(pa.string_view())) == pa.list_(pa.large_string())


def test_what_was_always_null_may_become_text():
    assert without_nulls(pa.struct([("a", pa.large_list(pa.null()))])) == pa.struct(
        [("a", pa.large_list(pa.large_string()))]
    )
