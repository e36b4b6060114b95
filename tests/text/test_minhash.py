"""MinHash: candidates and estimates are as the theory says.

Sets of shingles against the slow and obvious way.
"""

import numpy as np
import pytest

# ruff: noqa: RUF001  (characters that look like others are what is tried)
from gristmill_testing import duplicates, shared_data
from gristmill_testing.duplicates import column
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.minhash import MinHash, ShingleSets, estimate_similarities


def similarity(sets):
    return sets.compare(np.array([0]), np.array([1]))[0]


@pytest.mark.parametrize("num_shingles", [30, 300])
@pytest.mark.parametrize("similarity", [0.75, 0.80, 0.85, 0.90])
def test_candidates_and_estimates_are_as_the_theory_says(similarity, num_shingles):
    ones, others, exact = duplicates.planted(similarity, 2500, num_shingles=num_shingles)
    minhash = MinHash()
    first, second = minhash.sign(column(ones)), minhash.sign(column(others))
    recall = (first.keys == second.keys).any(axis=1).mean()
    assert abs(recall - (1 - (1 - exact**6) ** 18)) < 0.02
    estimates = estimate_similarities(first.sketches, second.sketches)
    assert abs(estimates.mean() - exact) < 0.005
    assert abs(estimates.std() / np.sqrt(exact * (1 - exact) / 108) - 1) < 0.08


ODD = "aB1 é\u0301ß。，漢字かなカ゛ไทย한국어्हि𝔸🌾\u200d\n\t-_'İǆ𠀀ﬁ０Ａ"


def assert_same_sets(texts, ngram):
    """As many shingles, and as many in common, whatever they are called."""
    found = ShingleSets.of(column(texts), ngram)
    expected = [duplicates.shingles(text, ngram) for text in texts]
    assert found.sizes.tolist() == [len(shingles) for shingles in expected]
    assert all((np.diff(found[text]) > 0).all() for text in range(len(texts)))
    pairs = [(one, other) for one in range(len(texts)) for other in range(one)]
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    assert found.compare(left, right).tolist() == [duplicates.jaccard(expected[i], expected[j]) for i, j in pairs]


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.text(ODD, max_size=30), min_size=1, max_size=5), ngram=st.integers(1, 4))
def test_sets_of_odd_texts(texts, ngram):
    assert_same_sets(texts, ngram)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_sets_of_any_text(texts):
    # Above 2^16 the kernel has ranges where Unicode has categories.
    assert_same_sets(["".join(c for c in text if c < "\U00010000") for text in texts], 2)


@pytest.mark.parametrize("name", shared_data.CORPORA)
def test_sets_of_real_texts(name):
    assert_same_sets(shared_data.corpus_texts(name, 25), 5)
