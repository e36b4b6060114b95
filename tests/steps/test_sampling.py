from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import SPLIT, documents, texts
from gristmill.core.seeds import find_ranges
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.steps import Limit, Sample, Shuffle, Split


def kept(fraction, seed=0, count=20_000, **parameters):
    batch = documents([""] * count)
    applied = Sample(fraction=fraction, **parameters).apply(batch, seed)
    return {origin["position"] for origin in applied.batch.column("origin").to_pylist()}


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.9])
def test_keeps_about_the_fraction(fraction):
    spread = 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
    assert abs(len(kept(fraction)) - 20_000 * fraction) < spread


def test_ends():
    assert kept(0) == set()
    assert len(kept(1)) == 20_000


def test_smaller_fraction_keeps_a_part():
    assert kept(0.1) < kept(0.3) < kept(0.9)


def test_seeds_and_salts_choose_independently():
    for other in (kept(0.5, seed=1), kept(0.5, salt="other")):
        assert abs(len(kept(0.5) & other) - 5000) < 300


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_not_a_fraction(fraction):
    with pytest.raises(UsageError):
        Sample(fraction=fraction)


@given(st.lists(st.integers(0, 20)), st.integers(0, 100))
def test_shares_are_the_first_records(counts, limit):
    records = [(part, row) for part, count in enumerate(counts) for row in range(count)]
    shares = Limit(max_records=limit).shares(counts)
    assert [(part, row) for part, share in enumerate(shares) for row in range(share)] == records[:limit]
    assert len(shares) == len(counts)


def test_negative_is_refused():
    with pytest.raises(UsageError):
        Limit(max_records=-1)


WORDS = [str(number) for number in range(2000)]


@given(st.permutations(range(40)), st.integers(1, 9))
def test_order_depends_neither_on_arrival_nor_on_buckets(arrival, num_buckets):
    batch = documents(WORDS[:40])
    whole = Shuffle().sort(batch, seed=5)
    arrived = batch.take(pa.array(arrival))
    assert Shuffle().sort(arrived, seed=5).equals(whole)
    buckets = find_ranges(Shuffle().keys(arrived, 5), num_buckets)
    parts = [Shuffle().sort(arrived.filter(pa.array(buckets == number)), seed=5) for number in range(num_buckets)]
    assert pa.concat_batches(parts).equals(whole)


def test_is_a_permutation_and_depends_on_the_seed():
    batch = documents(WORDS)
    one, two = (texts(Shuffle().sort(batch, seed=seed)) for seed in (1, 2))
    assert sorted(one) == sorted(two) == sorted(WORDS)
    moved = np.array(one, dtype=int)
    assert abs(np.corrcoef(moved, np.arange(2000))[0, 1]) < 0.1
    assert one != two


def test_buckets_are_even_and_in_range():
    buckets = find_ranges(Shuffle().keys(documents(WORDS * 10), 0), 7)
    counts = np.bincount(buckets, minlength=7)
    assert len(counts) == 7
    assert counts.min() > 2500
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert list(find_ranges(ends, 2**32)) == [0, 2**32 - 1]
    with pytest.raises(UsageError):
        find_ranges(ends, 0)


def splits(step, batch, seed=0):
    return step.apply(batch, seed).batch.column(SPLIT).to_pylist()


def test_fractions_are_met_and_copies_stay_together():
    words = [str(number % 10_000) for number in range(20_000)]
    found = splits(Split(validation=0.1, test=0.2), documents(words))
    counts = Counter(found)
    assert abs(counts["validation"] - 2000) < 300
    assert abs(counts["test"] - 4000) < 400
    assert found[:10_000] == found[10_000:]


def test_more_validation_only_moves_the_border():
    batch = documents([str(number) for number in range(1000)])
    small, large = (splits(Split(validation=fraction), batch) for fraction in (0.1, 0.3))
    assert all(then == "validation" for now, then in zip(small, large, strict=True) if now == "validation")


def test_by_origin_and_by_column():
    batch = documents(["same"] * 1000, site=[number % 10 for number in range(1000)])
    assert len(set(splits(Split(validation=0.5, by="origin"), batch))) == 2
    by_site = splits(Split(validation=0.5, by="site"), batch)
    assert len(set(by_site)) == 2
    assert all(by_site[number] == by_site[number % 10] for number in range(1000))


@given(st.lists(st.integers(0, 30), min_size=6, max_size=60), st.integers(0, 3), st.integers(0, 3), st.integers(1, 59))
def test_numbers_are_exact_but_for_copies(values, validation, test, cut):
    if not validation + test:
        return
    step = Split(validation=validation, test=test)
    assert isinstance(step.resolve("."), GlobalStep)
    batch = documents([str(value) for value in values])
    keys = step.keys(batch, 0)
    smallest = step.smallest([keys[:cut], keys[cut:]])
    assert np.array_equal(smallest, step.smallest([step.smallest([keys[cut:]]), keys[:cut]]))
    if len(values) <= validation + test:
        with pytest.raises(UsageError):
            step.bounds(smallest, len(values))
        return
    found = step.assign(batch, 0, step.bounds(smallest, len(values))).batch.column(SPLIT).to_pylist()
    sides = {}
    for value, split in zip(values, found, strict=True):
        assert sides.setdefault(value, split) == split
    copies = max(Counter(values).values())
    counts = Counter(found)
    assert validation <= counts["validation"] < validation + copies or (not validation and not counts["validation"])
    assert counts["validation"] + counts["test"] >= validation + test
    if copies == 1:
        assert (counts["validation"], counts["test"]) == (validation, test)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"validation": -0.1},
        {"validation": -5},
        {"validation": 0.5, "test": 0.5},
        {"validation": 1.0},
        {"validation": 0.1, "test": 5},
        {"validation": float("nan")},
    ],
)
def test_senseless_parts_are_refused(parameters):
    with pytest.raises(UsageError):
        Split(**parameters)


def test_fractions_are_local():
    assert isinstance(Split(validation=0.1).resolve("."), LocalStep)
    assert isinstance(Split(test=0.1).resolve("."), LocalStep)


def test_columns_are_checked():
    schema = documents([], domain=pa.array([], pa.string()), tags=pa.array([], pa.list_(pa.string()))).schema
    with pytest.raises(UsageError) as error:
        Split(validation=0.1, by="domian").output_schema(schema)
    assert "domain" in error.value.help
    with pytest.raises(UsageError):
        Split(validation=0.1, by="tags").output_schema(schema)
    once = Split(validation=0.1).output_schema(schema)
    assert Split(test=0.1).output_schema(once) == once


def test_what_is_held_out_stays_there():
    batch = documents([f"text {n}" for n in range(1000)])
    before = [("train", "dev", "test")[n % 3] for n in range(1000)]
    found = splits(Split(validation=0.5), batch.append_column(SPLIT, pa.array(before)))
    alone = splits(Split(validation=0.5), batch)
    assert found == [alone[n] if before[n] == "train" else before[n] for n in range(1000)]
