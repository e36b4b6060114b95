from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import SPLIT
from gristmill.core.sample_batches import documents
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.steps import Split


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
