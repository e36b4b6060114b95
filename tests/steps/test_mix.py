"""`mix` as a step: what it counts, and what it refuses. Whole mixes are in `pipeline`."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import documents
from gristmill.steps import Mix

WEIGHTS = {"web": 0.7, "code": 0.3}


@pytest.mark.parametrize(
    "fields",
    [{"size": 0}, {"size": 1.5}, {"size": 10, "by": "words"}, {"size": 10, "max_epochs": 0}],
)
def test_senseless_numbers_are_refused(fields):
    with pytest.raises(UsageError):
        Mix(weights=WEIGHTS, **fields)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_is_above_nothing(weight):
    with pytest.raises(UsageError, match="weight of web"):
        Mix(weights={"web": weight}, size=10)


def test_documents_count_one_each():
    mix = Mix(weights=WEIGHTS, size=10, by="documents")
    assert mix.amounts(documents(["one", "two words"])).tolist() == [1, 1]


def test_tokens_are_counted_after_tokenize_only():
    schema = documents(["one"]).schema
    with pytest.raises(UsageError, match="no tokens to count"):
        Mix(weights=WEIGHTS, size=10).output_schema(schema)
    assert Mix(weights=WEIGHTS, size=10, by="documents").output_schema(schema).names == [*schema.names, "source"]
    assert Mix(weights=WEIGHTS, size=10, by="documents", interleave=False).output_schema(schema) == schema


def test_keys_depend_on_seed_and_origin():
    mix, batch = Mix(weights=WEIGHTS, size=10, by="documents"), documents(["one", "two", "three"])
    keys = mix.keys(batch, 1).tolist()
    assert keys == mix.keys(batch, 1).tolist()
    assert keys != mix.keys(batch, 2).tolist()
    assert mix.keys(batch.slice(1), 1).tolist() == keys[1:]
