import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import Records, Texts, documents, texts
from gristmill.steps import Length


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.integers(0, 5), st.none() | st.integers(5, 9))
def test_keeps_what_python_would_keep(words, low, high):
    applied = Length(min_chars=low, max_chars=high).apply(documents(words), seed=0)
    assert texts(applied.batch) == [word for word in words if low <= len(word) <= (high or len(word))]
    assert applied.dropped.get("too_short", 0) == sum(len(word) < low for word in words)


def test_characters_are_not_bytes():
    assert texts(Length(min_chars=2, max_chars=2).apply(documents(["é🌾", "abc"]), seed=0).batch) == ["é🌾"]


@pytest.mark.parametrize("parameters", [{"min_chars": -1}, {"min_chars": 5, "max_chars": 4}])
def test_senseless_bounds_are_refused(parameters):
    with pytest.raises(UsageError):
        Length(**parameters)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.integers(0, 5), st.none() | st.integers(5, 9))
def test_strings_beside_the_batch_are_kept_like_its_texts(words, low, high):
    batch, step = documents(words), Length(min_chars=low, max_chars=high)
    records = Records(batch.drop_columns(["text"]), Texts(words, batch.schema))
    applied, expected = step.apply_to(records, seed=0), step.apply(batch, seed=0)
    assert applied.records.batch.equals(expected.batch)
    assert applied.texts.strings == texts(expected.batch)
    assert (applied.dropped, applied.reasons) == (expected.dropped, expected.reasons)


def test_explain_names_the_keys_of_the_recipe():
    found = Length(min_chars=3, max_chars=9).explain(documents(["ab"]))
    assert [(finding.rule, finding.threshold, finding.passed) for finding in found] == [
        ("min_chars", 3, False),
        ("max_chars", 9, True),
    ]
