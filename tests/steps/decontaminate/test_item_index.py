"""Which items a text holds: against a slow second implementation, and the rules one by one."""

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.contamination_reference import find_items
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.steps.decontaminate.item_index import MAX_ITEMS, build_index
from gristmill.steps.decontaminate.items import ANSWER, QUESTION, BenchmarkItem

QUESTION_TEXT = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."


def make_items(items):
    return [
        BenchmarkItem(f"b/{number}", {QUESTION: question, **({ANSWER: answer} if answer else {})})
        for number, (question, answer) in enumerate(items)
    ]


def found_items(items, texts, *, ngram=8, min_words=6, min_coverage=0.4, window=2.0):
    """For each text the numbers of the items in it."""
    index = build_index(make_items(items), ngram=ngram, min_words=min_words)
    hits = index.find_hits(pa.array(texts, pa.large_string()))
    matches = index.find_matches(hits, np.zeros(index.num_keys, bool), min_coverage, window)
    found = [set() for _ in texts]
    for row, passage, *_ in matches.tolist():
        found[row].add(index.passages[passage].item)
    return found


WORDS = st.sampled_from(["a", "B", "cé", "12", "7", "дом", "你", "好", "ไ", "x1", "\U0001d4b3", "😀", "—", "İ"])
TEXTS = st.lists(WORDS, max_size=30).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(
    items=st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1, max_size=5),
    noise=st.lists(TEXTS, min_size=2, max_size=2),
    picks=st.lists(st.integers(0, 99), max_size=3),
    ngram=st.integers(2, 5),
    min_coverage=st.sampled_from([0.25, 0.5, 1.0]),
    window=st.sampled_from([1.0, 1.5, 3.0]),
)
def test_equals_the_slow_implementation(items, noise, picks, ngram, min_coverage, window):
    planted = [items[pick % len(items)][pick % 2] or "" for pick in picks]
    text = f" {noise[1][: len(noise[1]) // 2]} ".join([noise[0], *planted, noise[1]])
    settings_ = {"ngram": ngram, "min_words": 2, "min_coverage": min_coverage, "window": window}
    assert found_items(items, [text, "nothing here"], **settings_)[0] == find_items(items, text, **settings_)


@pytest.mark.parametrize(
    "text",
    [
        QUESTION_TEXT,
        QUESTION_TEXT.upper(),
        f"Before it. {QUESTION_TEXT} And behind it.",
        QUESTION_TEXT.replace(" ", "\n"),
        f"{QUESTION_TEXT}\nShe sold 24 clips in May.",
        "Nataliá sold -- clips? to 48 of her friends in April and then she sold half as many",
    ],
)
def test_found_whatever_is_around_it(text):
    assert found_items([(QUESTION_TEXT, None)], [text]) == [{0}]


@pytest.mark.parametrize(
    "question",
    ["Wie heißt die größte Straße am Fuß?", "Große Grüße: " + "wie viele Maß Weißbier trinkt man außen an der " * 2],
    ids=["short", "long"],
)
def test_sharp_s_is_found_in_capitals(question):
    texts = [question, question.upper(), question.replace("ß", "ss"), question.replace("ß", "t")]
    assert found_items([(question, None)], texts) == [{0}, {0}, {0}, set()]
    assert found_items([(question.replace("ß", "ẞ"), None)], texts) == [{0}, {0}, {0}, set()]


def test_less_than_the_coverage_is_not_found():
    words = QUESTION_TEXT.split()  # 20 words
    texts = [" ".join(words[:12]), " ".join(words[:11]), " ".join([*words[:8], "and", *words[16:]])]
    assert found_items([(QUESTION_TEXT, None)], texts, min_coverage=0.6) == [{0}, set(), set()]


def test_few_words_are_not_enough():
    """Of a short question ten words, or all; of an answer, which many texts may share a line of, twenty."""
    answer = " ".join(f"w{number}" for number in range(30))
    words = QUESTION_TEXT.split()
    texts = [" ".join(part) for part in (words[:10], words[:9], answer.split()[:20], answer.split()[:19])]
    assert found_items([(QUESTION_TEXT, answer)], texts, min_coverage=0.1) == [{0}, set(), {0}, set()]


def test_a_changed_word_takes_no_other_with_it():
    words = [f"w{number}" for number in range(100)]
    changed = [word if number % 9 else "other" for number, word in enumerate(words)]
    assert found_items([(" ".join(words), None)], [" ".join(changed)], min_coverage=0.88) == [{0}]


def test_short_questions_must_occur_whole():
    question = "Which planet is nearest to the sun?"
    texts = [f"Say: which planet is nearest to the sun? {QUESTION_TEXT}", "Which planet is nearest to the moon?"]
    assert found_items([(question, None)], texts) == [{0}, set()]


def test_items_that_cannot_be_checked_are_listed():
    numbers = ["1 2 3 4 5 6 7", " ".join(map(str, range(20)))]
    items = make_items([("What is it?", None), *((text, None) for text in numbers)])
    index = build_index(items, ngram=13, min_words=6)
    assert index.unchecked == {"too_short_to_check": ["b/0"], "only_shared_words": ["b/1", "b/2"]}
    assert not len(index.find_hits(pa.array(numbers, pa.large_string())))


def test_choices_make_a_short_question_long_enough():
    item = BenchmarkItem("b/0", {QUESTION: "What is true?"}, choices="all of it\nnone of it")
    index = build_index([item], ngram=13, min_words=6)
    assert len(index.find_hits(pa.array(["what is true? all of it, none of it"], pa.large_string()))) == 1


def test_a_template_of_many_items_says_nothing():
    template = "Answer the following multiple choice question and give only the letter of the right choice please now"
    items = [(f"{template} {number} {'word' * (number + 1)} tail", None) for number in range(MAX_ITEMS + 1)]
    assert found_items(items, [template, items[3][0]]) == [set(), {3}]


def test_numbers_alone_do_not_count():
    numbers = " ".join(str(number) for number in range(40))
    item = f"{numbers} what comes next in this list of numbers after the last one here"
    assert found_items([(item, None)], [numbers]) == [set()]


def test_n_grams_that_are_far_apart_do_not_count():
    first, second = " ".join(f"a{n}" for n in range(14)), " ".join(f"b{n}" for n in range(14))
    item, gap = f"{first} {second}", " filler" * 60
    assert found_items([(item, None)], [f"{first}{gap} {second}", item], min_coverage=0.6) == [set(), {0}]


def test_every_occurrence_is_found():
    index = build_index(make_items([(QUESTION_TEXT, None)]), ngram=13, min_words=6)
    hits = index.find_hits(pa.array([QUESTION_TEXT + " and again " * 30 + QUESTION_TEXT], pa.large_string()))
    matches = index.find_matches(hits, np.zeros(index.num_keys, bool), 0.5, 2.0)
    assert [(match["first"], match["stop"]) for match in matches] == [(0, 20), (80, 100)]


def test_long_texts_are_searched_over_the_borders_of_blocks():
    texts = ["word " * number + QUESTION_TEXT for number in range(4070, 4110)]
    assert found_items([(QUESTION_TEXT, None), ("Which planet is nearest to the sun?", None)], texts) == [{0}] * 40
