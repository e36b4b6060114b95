"""Filters as tables of thresholds over scores."""

import functools
import math
import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.quality_reference import scores_of
from gristmill_testing.shared_data import corpus_records, corpus_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, RECORD_TYPE, Records, documents, texts
from gristmill.core.step import link_counting_kernels
from gristmill.steps.language import Language
from gristmill.steps.quality.filters import ENGLISH, Code, Fineweb, GopherQuality, GopherRepetition, Repetition, Scores
from gristmill.text.quality.counting import SCORES

FILTERS = [Code, Fineweb, GopherQuality, GopherRepetition, Repetition, Scores]
TEXTS = st.lists(st.sampled_from(["a b", "a", "\n", "end.\n", "x y z\n", " ", "{;", "0", "中文", "…"]), max_size=30)


@functools.lru_cache(500)  # all filters are tried on the same texts
def english_scores(text):
    return scores_of(text, ENGLISH)


def failing(step, text):
    """The rules that a text breaks, by their definition."""
    scores = english_scores(text)
    if not scores["words"]:
        return ["empty"]
    found = []
    for rule in step.rules:
        threshold = getattr(step, rule.name)
        value = scores[rule.score.name]
        if threshold is not None and (value < threshold if rule.name.startswith("min_") else value > threshold):
            found.append(rule.name)
    return found


def check(step, pages):
    applied = step.apply(documents(pages), seed=0)
    broken = [failing(step, page) for page in pages]
    assert texts(applied.batch) == [page for page, rules in zip(pages, broken, strict=True) if not rules]
    first = [rules[0] for rules in broken if rules]
    assert applied.dropped == {rule: first.count(rule) for rule in set(first)}
    every = [rule for rules in broken for rule in rules]
    assert applied.counters == {f"failed:{rule}": every.count(rule) for rule in set(every)}
    reasons = [applied.reasons[code - 1] if code else None for code in applied.codes]
    assert reasons == [rules[0] if rules else None for rules in broken]


@pytest.mark.parametrize("step_type", FILTERS)
@settings(max_examples=40, deadline=None)
@given(pages=st.lists(TEXTS.map("".join), max_size=5))
def test_reasons_and_all_that_failed(step_type, pages):
    check(step_type(), pages)


@pytest.mark.parametrize("corpus", ["python_manual", "many_languages", "kubernetes_website"])
@pytest.mark.parametrize("step_type", FILTERS)
def test_real_documents(step_type, corpus):
    check(step_type(), [page[:8000] for page in corpus_texts(corpus, 40)])


@pytest.mark.parametrize("step_type", FILTERS)
def test_a_value_at_the_threshold_is_kept(step_type):
    page = "It is a line of words that ends.\nIt is a line of words that ends.\n- of {x}; 12...\n\nthe the the #"
    scores = scores_of(page, ENGLISH)
    for rule in step_type().rules:
        off = dict.fromkeys([other.name for other in step_type().rules])
        value = scores[rule.score.name]
        at = step_type(**(off | {rule.name: value}))
        assert not at.apply(documents([page]), seed=0).dropped
        # The next number on the other side of the value.
        least = rule.name.startswith("min_")
        beyond = value + (1 if least else -1) if isinstance(value, int) else math.nextafter(value, 99 if least else -1)
        past = step_type(**(off | {rule.name: beyond}))
        assert past.apply(documents([page]), seed=0).dropped == {rule.name: 1}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"min_words": 10, "max_words": 9}, r"min_words \(10\) is above max_words"),
        ({"max_hash_word_ratio": math.nan}, "max_hash_word_ratio is not a number"),
        ({"by_language": {"de": {"max_words": 3}}}, "is above max_words.*for de"),
        ({"by_language": {"de": {"max_word": 3}}}, 'no rule "max_word" for de'),
        ({"by_language": {"de": {"max_words": "x"}}}, "max_words for de"),
        ({"by_language": {"de": {"max_hash_word_ratio": math.nan}}}, "not a number for de"),
        ({"max_words": 10**400}, "max_words: .*too large"),
        ({"max_hash_word_ratio": -(10**400)}, "max_hash_word_ratio"),
        ({"by_language": {"de": {"max_words": 10**400}}}, "max_words for de: .*too large"),
        ({"max_words": "many"}, "max_words: Expected `int"),
        ({"max_hash_word_ratio": [1]}, "max_hash_word_ratio: Expected `float"),
        ({"by_language": {"de": 3}}, "by_language: Expected `object"),
        ({"stop_words": 3}, "stop_words: Expected `array"),
        ({"stop_words": ["of the"]}, "not a single word"),
        ({"by_language": {"german": {"min_words": 3}}}, '"german" is not a language code'),
        ({"by_language": {"xx": {}}}, '"xx" is not a language code'),
        ({"by_language": {"": {}}}, "is not a language code"),
        ({"by_language": {"zh": {"stop_words": ["的是"]}}}, "not a single word"),
    ],
)
def test_senseless_tables_are_refused(parameters, message):
    with pytest.raises(UsageError, match=message):
        GopherQuality(**parameters)


def test_a_filter_uses_what_the_last_one_has_counted(monkeypatch):
    batch = documents(["This is a line of words. " * 3, "x " * 300, "This is the end of it, with all of that."])
    first = GopherRepetition().load().apply(batch, seed=0)
    alone = Fineweb().load()
    monkeypatch.setattr(alone, "_counter", None)  # it may not count
    shared = alone.apply_to(Records(first.batch, counts=first.counts), 0)
    again = Fineweb().apply(first.batch, seed=0)
    assert shared.dropped == again.dropped
    assert shared.batch.equals(again.batch)


def test_counts_are_handed_on_through_a_filter_that_had_to_count(monkeypatch):
    batch = documents(["This is the end of it, with all of that. " * 20])
    counted = Scores(max_duplicate_line_character_ratio=1.0).apply(batch, seed=0)
    second = GopherQuality(min_stop_words=2).load()  # which has to count its stop words itself
    handed_on = second.apply_to(Records(counted.batch, counts=counted.counts), 0)
    assert "stop_words" not in handed_on.counts
    last = Fineweb(max_short_line_ratio=None).load()
    monkeypatch.setattr(last, "_counter", None)  # it may not count
    assert (
        last.apply_to(Records(handed_on.batch, counts=handed_on.counts), 0).batch.num_rows == handed_on.batch.num_rows
    )


def test_counts_are_not_handed_on_where_a_record_was_quarantined():
    records = pa.array([b'{"text": "one two"}', b'{"text": "three", '], RECORD_TYPE)
    batch = documents(["one two", "three"]).append_column(RECORD, records)
    applied = Scores(min_words=1, keep_scores=True).apply(batch, seed=0)
    assert len(applied.quarantined) == 1
    assert not applied.counts


def test_the_first_of_linked_filters_counts_for_all_of_them(monkeypatch):
    kernels = [step.load() for step in (GopherQuality(min_words=5), GopherRepetition(), Fineweb())]
    link_counting_kernels([Language(), *kernels])
    for kernel in kernels[1:]:
        monkeypatch.setattr(kernel, "_counter", None)  # it may not count
    good = "This is the end of it, with all of that in one line."
    batch, counts, reasons = documents([good, "too short", "That is to be with the. " * 9]), {}, {}
    for kernel in kernels:
        applied = kernel.apply_to(Records(batch, counts=counts), 0)
        batch, counts = applied.batch, applied.counts
        reasons |= applied.dropped
    assert texts(batch) == [good]
    assert list(reasons) == ["min_words", "max_top_2_gram_ratio"]


def test_what_a_filter_drops_is_not_searched_for_the_next_one():
    first = GopherQuality(min_words=5).load()
    link_counting_kernels([first, GopherRepetition().load()])
    counted = first._complete_counts({}, documents(["a b", "a b a b a b"]).column("text"), np.zeros(2, np.int64))
    assert counted["words"].tolist() == [2, 6]
    assert counted["searched_words"].tolist() == [0, 0]  # the stop words are missing in both
    first = GopherQuality(min_words=5, min_stop_words=None, min_mean_word_length=None).load()
    link_counting_kernels([first, GopherRepetition().load()])
    counted = first._complete_counts({}, documents(["a b", "a b a b a b"]).column("text"), np.zeros(2, np.int64))
    assert counted["searched_words"].tolist() == [0, 6]


def test_a_filter_of_short_runs_does_not_hide_longer_ones_from_the_next():
    batch = documents(["a b c d e f g h i j k l " * 3])
    first = Repetition(max_duplicate_10_gram_ratio=None).apply(batch, seed=0)
    assert GopherRepetition().load().apply_to(Records(first.batch, counts=first.counts), 0).dropped


PHRASE_LENGTHS = {"th": 400, "my": 400, "km": 400, "lo": 400, "bo": 400, "zh": 200, "ii": 200, "ja": 300}
FIRST_LETTERS = {
    "th": 0xE01,
    "my": 0x1000,
    "km": 0x1780,
    "lo": 0xE94,
    "bo": 0xF40,
    "zh": 0x4E00,
    "ii": 0xA000,
    "ja": 0x3042,
}


def letters_of(language, count, seed):
    """Without a sense, but of as many different letters as the script has in common use."""
    num_letters = 2000 if language == "zh" else 400 if language == "ii" else 30
    alphabet = [chr(FIRST_LETTERS[language] + number) for number in range(num_letters)]
    generator = random.Random(f"{language} {seed}")
    return "".join(generator.choice([letter for letter in alphabet if letter.isalpha()]) for _ in range(count))


@pytest.mark.parametrize("language", PHRASE_LENGTHS)
def test_scripts_without_spaces_repeat_phrases_not_letters(language):
    """A page of 100 words that differ is kept, one that says a phrase of 10 words again and again is dropped."""
    length = PHRASE_LENGTHS[language]
    page = letters_of(language, 10 * length, 0)
    phrase = letters_of(language, length // 10, 1)
    looping = "".join(phrase + letters_of(language, length // 20 + turn, 2 + turn) for turn in range(20))
    assert not GopherRepetition().apply(documents([page]), seed=0).dropped
    assert GopherRepetition().apply(documents([looping]), seed=0).dropped


def test_translated_pages_are_dropped_as_often_as_english_ones():
    pages = defaultdict(list)
    for record in corpus_records("webdev_translations", 2000):
        pages[record["lang"]].append(record["text"])
    shares = {
        language: sum(GopherRepetition().apply(documents(texts), seed=0).dropped.values()) / len(texts)
        for language, texts in pages.items()
        if len(texts) > 15
    }
    assert max(shares.values()) < shares["en"] + 0.1
    assert sum(shares[language] for language in ("th", "my", "ja", "zh-CN")) / 4 < shares["en"] + 0.05


def test_every_score_has_rules():
    names = {rule.name for rule in (*Scores().rules, *GopherQuality().rules)}
    assert {name for name in SCORES if f"max_{name}" not in names} == {"stop_words"}
    assert {name for name in SCORES if f"min_{name}" not in names} == set()


def test_versions_of_scores_are_in_the_fingerprint():
    assert Fineweb().fingerprint_versions == [
        1,
        {"terminal_line_ratio": 1, "short_line_ratio": 1, "duplicate_line_character_ratio": 1, "lines_per_word": 1},
    ]
