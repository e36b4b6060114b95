import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.steps import Limit


@given(st.lists(st.integers(0, 20)), st.integers(0, 100))
def test_shares_are_the_first_records(counts, limit):
    records = [(part, row) for part, count in enumerate(counts) for row in range(count)]
    shares = Limit(max_records=limit).shares(counts)
    assert [(part, row) for part, share in enumerate(shares) for row in range(share)] == records[:limit]
    assert len(shares) == len(counts)


def test_negative_is_refused():
    with pytest.raises(UsageError):
        Limit(max_records=-1)
