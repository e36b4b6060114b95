import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import make_origins
from gristmill.core.seeds import derive_key, find_ranges, hash_bound, hash_origins, hash_texts

ORIGINS = make_origins(7, pa.array(range(1000), pa.uint64()))


def test_purposes_and_seeds_share_no_key():
    keys = {derive_key(seed, purpose) for seed in range(20) for purpose in ("shuffle", "split", "sample")}
    assert len(keys) == 60


def test_hashes_of_origins_depend_on_the_origin_alone():
    hashes = hash_origins(1, "shuffle", ORIGINS)
    assert list(hash_origins(1, "shuffle", ORIGINS.slice(300, 10))) == list(hashes[300:310])
    assert len(set(hashes)) == 1000
    assert not set(hashes) & set(hash_origins(2, "shuffle", ORIGINS))


def test_null_text_counts_as_empty():
    hashes = hash_texts(1, "split", pa.array(["", None, "a"]))
    assert hashes[0] == hashes[1] != hashes[2]


@given(st.floats(0, 1))
def test_bound_keeps_the_fraction(fraction):
    assert abs(hash_bound(fraction) - fraction * 2**64) <= 2**12
    assert hash_bound(0) == 0
    assert hash_bound(1) == 2**64


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 2**32))
def test_ranges_are_equal_and_in_order(hashes, num_ranges):
    ranges = find_ranges(np.array(sorted(hashes), dtype=np.uint64), num_ranges)
    # Only the high half of a hash decides: the borders are exact to 2^32.
    assert ranges.tolist() == [(value >> 32) * num_ranges >> 32 for value in sorted(hashes)]
    assert (np.diff(ranges) >= 0).all()
    assert 0 <= ranges.min() <= ranges.max() < num_ranges


@pytest.mark.parametrize("num_ranges", [0, 2**32 + 1])
def test_impossible_number_of_ranges_is_refused(num_ranges):
    with pytest.raises(UsageError, match=str(num_ranges)):
        find_ranges(np.zeros(1, dtype=np.uint64), num_ranges)
