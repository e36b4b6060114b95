"""Records of token ids: the arrays of each record against slow, obvious code, and what cannot be used."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, documents
from gristmill.steps import Read
from gristmill.steps.token_ids import TokenIds

VOCAB = 9
IDS = st.lists(st.integers(-1, VOCAB), max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.one_of(st.none(), IDS),
            "answer": IDS,
            "labels": st.one_of(st.none(), st.lists(st.sampled_from([-100, 1, 2, 3]), max_size=5), st.just("same")),
            "mask": st.one_of(st.just("fits"), st.lists(st.integers(0, 2), max_size=4)),
            "weights": st.one_of(
                st.just("fits"), st.lists(st.sampled_from([0.0, 0.5, 2.0, -1.0, math.nan, math.inf]), max_size=4)
            ),
            "logprobs": st.one_of(st.just("fits"), st.lists(st.one_of(st.none(), st.just(-0.5)), max_size=4)),
            "is_short": st.booleans(),
        }
    ),
    max_size=8,
)


def fill_in(row, fields):
    """The arrays of a drawn row; `fits` and `same` are arrays of the right length."""
    ids = [*(row["prompt"] or ()), *row["answer"]] if "prompt" in fields else row["answer"]
    target = row["answer"] if row["is_short"] else ids
    fits = {
        "labels": target,
        "mask": [1] * len(target),
        "weights": [0.5] * len(target),
        "logprobs": [-1.5] * len(target),
    }
    return {name: fits[name] if row[name] in ("fits", "same") else row[name] for name in row if name != "is_short"}


def make_batch(rows, fields):
    types = {"weights": pa.float64(), "logprobs": pa.float64()}
    filled = [fill_in(row, fields) for row in rows]
    columns = {
        name: pa.array([row[name] for row in filled], pa.large_list(types.get(name, pa.int64()))) for name in fields
    }
    return documents([""] * len(rows), **columns)


def slow(row, step):
    """What becomes of one record: its arrays, or None."""
    parts = [row[name] for name in step.ids]
    others = {name: row[name] for name in (step.labels, step.mask, step.weights, *step.token_columns) if name}
    if any(values is None or None in values for values in (*parts, *others.values())):
        return None
    ids = [token for part in parts for token in part]
    if any(len(values) not in (len(ids), len(parts[-1])) for values in others.values()):
        return None
    if any(not 0 <= token < step.vocab_size for token in ids):
        return None
    whole = {
        name: values if len(values) == len(ids) else [None] * (len(ids) - len(values)) + values
        for name, values in others.items()
    }
    mask = [0] * (len(ids) - len(parts[-1])) + [1] * len(parts[-1])
    if step.weights:
        if any(not (math.isfinite(weight) and weight >= 0) for weight in others[step.weights]):
            return None
        mask = [bool(weight) for weight in whole[step.weights]]
    if step.mask:
        if any(value not in (0, 1) for value in others[step.mask]):
            return None
        mask = whole[step.mask]
    if step.labels:
        if any(label not in (None, -100, token) for token, label in zip(ids, whole[step.labels], strict=True)):
            return None
        mask = [label not in (None, -100) for label in whole[step.labels]]
    made = {"input_ids": ids}
    if step.is_masked:
        made["loss_mask"] = [bool(value) for value in mask]
    if step.weights:
        made["loss_weights"] = [value or 0 for value in whole[step.weights]]
    return made | {name: [value or 0 for value in whole[name]] for name in step.token_columns}


STEPS = [
    TokenIds(ids=("answer",), vocab_size=VOCAB),
    TokenIds(ids=("answer",), labels="labels", vocab_size=VOCAB),
    TokenIds(ids=("prompt", "answer"), vocab_size=VOCAB, token_columns=("logprobs",)),
    TokenIds(ids=("prompt", "answer"), labels="labels", weights="weights", vocab_size=VOCAB),
    TokenIds(ids=("prompt", "answer"), mask="mask", weights="weights", vocab_size=VOCAB, token_columns=("logprobs",)),
    TokenIds(ids=("answer",), weights="weights", vocab_size=70_000),
]


@pytest.mark.every_case
@pytest.mark.parametrize("step", STEPS, ids=lambda step: "+".join(step.columns_needed()))
@settings(max_examples=150, deadline=None)
@given(rows=ROWS, cut=st.integers(0, 8))
def test_the_arrays_of_every_record(step, rows, cut):
    batch = make_batch(rows, step.columns_needed())
    expected = [slow(row, step) for row in batch.to_pylist()]
    result = step.apply(batch, 0)
    result.batch.validate(full=True)
    assert result.batch.schema.equals(step.output_schema(batch.schema))
    assert [
        {name: row[name] for name in row if name != "text" and name != ORIGIN} for row in result.batch.to_pylist()
    ] == [made for made in expected if made is not None]
    assert [bad.position for bad in result.quarantined] == [n for n, made in enumerate(expected) if made is None]
    parts = step.apply(batch.slice(0, cut), 0), step.apply(batch.slice(cut), 0)
    assert pa.concat_batches([part.batch for part in parts]).equals(result.batch)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": None}, "missing_ids"),
        ({"answer": [1, None, 3]}, "null_in_tokens"),
        ({"answer": [1, 2, VOCAB]}, "id_outside_vocabulary"),
        ({"answer": [1, -1, 3]}, "id_outside_vocabulary"),
        ({"labels": [1, 2]}, "unequal_lengths"),
        ({"labels": None}, "missing_values"),
        ({"labels": [1, 2, 4]}, "label_is_not_id"),
        ({"weights": [1.0, math.nan, 0.0]}, "bad_weight"),
        ({"weights": [1.0, -0.5, 0.0]}, "bad_weight"),
        ({"logprobs": [-0.1]}, "unequal_lengths"),
    ],
)
def test_each_reason(change, reason):
    good = {"answer": [1, 2, 3], "labels": [-100, 2, 3], "weights": [1.0, 0.5, 0.0], "logprobs": [-0.1, -math.inf, 0.0]}
    step = TokenIds(ids=("answer",), labels="labels", weights="weights", token_columns=("logprobs",), vocab_size=VOCAB)
    rows = [good, good | change]
    batch = documents(["", ""], **{name: pa.array([row[name] for row in rows]) for name in good})
    result = step.apply(batch, 0)
    assert result.batch.num_rows == 1
    [bad] = result.quarantined
    assert (bad.position, bad.reason) == (1, reason)


def test_fields_that_are_no_lists_of_numbers_are_refused():
    step = TokenIds(ids=("ids",), mask="mask", vocab_size=VOCAB)
    for columns in ({"ids": [1]}, {"ids": [["a"]]}, {"ids": [[0.5]]}, {"ids": [[1]], "mask": [[0.5]]}):
        with pytest.raises(UsageError, match="not a list"):
            step.output_schema(documents([""], **{"mask": [[1]]} | columns).schema)
    with pytest.raises(UsageError, match="embedding"):
        step.output_schema(documents([""], ids=[[1]], mask=[[True]], embedding=[[0.5, 0.1, 0.2]]).schema)


def test_shifted_labels_are_refused_by_the_plan():
    step = TokenIds(ids=("ids",), labels="labels", vocab_size=VOCAB)
    shifted = documents(["", ""], ids=[[1, 2, 3], [4, 5, 6]], labels=[[2, 3, -100], [5, -100, -100]])
    with pytest.raises(UsageError, match="shifted"):
        step.adapt_to_sample(shifted)


@pytest.mark.parametrize(
    "keys",
    [
        {"labels": "labels"},
        {"tokenizer": "gpt2"},
        {"ids": []},
        {"ids": "a"},
        {"ids": "a", "vocab_size": 5, "tokenizer": "gpt2"},
        {"ids": "a", "vocab_size": 0},
        {"ids": "a", "vocab_size": 5, "text": "body"},
        {"ids": "a", "vocab_size": 5, "mask": "m", "labels": "l"},
        {"ids": ["a", "a"], "vocab_size": 5},
        {"ids": "a", "vocab_size": 5, "token_columns": ["loss_mask"]},
    ],
    ids=str,
)
def test_keys_that_make_no_sense(keys):
    with pytest.raises(UsageError):
        Read(read="a.jsonl", **keys)
