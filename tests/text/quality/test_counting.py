"""Only the passes that a set of scores needs.

Every score equals its slow reference, on any Unicode and on real documents; and laws that hold for all of them.
"""

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.quality_reference import scores_of
from gristmill_testing.shared_data import CORPORA, corpus_texts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.text.quality.counting import SCORES, RequiredPasses, StopWords, TextCounter

STOP_WORDS = ["the", "of", "и", "der", "的", "है"]


ALL = TextCounter(RequiredPasses.of(SCORES.values()), StopWords([["nothing"], STOP_WORDS]))


def scores(texts, counting=ALL):
    counts = counting.count(pa.array(texts, pa.large_string()), np.ones(len(texts), np.int64))
    return {name: score.value(counts).tolist() for name, score in SCORES.items()}


@pytest.mark.parametrize("name", SCORES)
def test_only_what_is_needed_is_counted(name):
    score = SCORES[name]
    alone = TextCounter(RequiredPasses.of([score]), StopWords([[], STOP_WORDS]))
    texts = ["the the of " * 20, "a\n\na\n\na b c d e f g h i j k " * 3, "中文中文"]
    counts = alone.count(pa.array(texts, pa.large_string()), np.ones(3, np.int64))
    assert score.value(counts).tolist() == [scores_of(text, STOP_WORDS)[name] for text in texts]


def test_no_pass_without_a_score_that_needs_it():
    assert RequiredPasses.of([SCORES["words"]]) == RequiredPasses()
    assert RequiredPasses.of([SCORES["top_3_gram_ratio"]]) == RequiredPasses(longest_run=3)
    assert RequiredPasses.of([SCORES["paragraphs"]]) == RequiredPasses(lines=True)


def test_stop_words_in_the_forms_that_the_definition_names():
    assert scores(["the", "The", "THE", "tHE"])["stop_words"] == [1, 1, 1, 0]


# ruff: noqa: RUF001
# Few words, so that they repeat; and all that has a meaning of its own.
PIECES = st.sampled_from(
    ["a", "b", "the", "The", "of,", "И", "Der", " ", " ", "  ", "\n", "\n\n", "\n \n", "\r\n", "\t", "\u2028", "\u3000",
     ".", "...", "…", "#", "-", "• ", "*", "!", "。", "，", "中", "文", "的", "ไ", "ท", "ั", "か", "カ", "x1", "9", "٣",
     "{", ";", "(", "_", "=", " = ", "==", "[", ")", "]", "f(", "x.y", "aB", '"', "'", "`", "\\", "\n```\n", '"""',
     "\n~~~", "://", " // ", " # ", "\n#if ", "\n--", "\n*/", "return ", "def ", ":", ",", "}", "$x", "e\u0301",
     "\u200b", "\ufeff", "🌾", "👩\u200d🌾", "אב", "है", "\x00", "\x1f", "ǅ", "don't"]
)  # fmt: skip
REPETITIVE = st.lists(PIECES, max_size=80).map("".join)
UNICODE = st.text(max_size=60)


def check(texts):
    found = scores(texts)
    for row, text in enumerate(texts):
        assert {name: values[row] for name, values in found.items()} == scores_of(text, STOP_WORDS), text[:200]


@settings(max_examples=300, deadline=None)
@given(st.lists(REPETITIVE | UNICODE, max_size=5))
@example(["", " ", "\n", "a", "\ufeff", "中", "a\r\n\r\na\r\n", "#", "...", "a b c d e f g h i j a b c d e f g h i j"])
@example(["中中中中.中", "中中中.中中中"])  # pieces of the same words in another order
def test_every_score_is_what_its_definition_says(texts):
    check(texts)


@pytest.mark.parametrize("corpus", CORPORA)
def test_real_documents(corpus):
    check([text[:20_000] for text in corpus_texts(corpus, 15, first=100)])


@settings(max_examples=200, deadline=None)
@given(REPETITIVE | UNICODE)
def test_laws(text):
    found = scores([text, text + "\n", "\n" + text + " \r\n\n"])
    for name, values in found.items():
        assert values[0] == values[1] == values[2], name
        if SCORES[name].by is not None and not name.startswith("mean_"):
            assert 0 <= values[0] <= 1, name
        assert not np.isnan(values[0])


@given(st.lists(REPETITIVE, min_size=1, max_size=6), st.integers(0, 6))
@settings(max_examples=50, deadline=None)
def test_a_document_is_counted_alone(texts, cut):
    """Whatever stands before it in the column, sliced or not."""
    column = pa.array([*texts, None], pa.large_string())
    whole = ALL.count(column)
    parts = [ALL.count(part) for part in (column.slice(0, cut), column.slice(cut))]
    for name, values in whole.items():
        assert values.tolist() == [*parts[0][name].tolist(), *parts[1][name].tolist()]
