"""What all filters by scores share: rules, kept scores, and counts that are handed on."""

import functools

import msgspec
import pyarrow as pa
import pytest
from gristmill_testing.quality_reference import scores_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.steps.quality.test_filters import check, failing

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, RECORD_TYPE, Records, documents, texts
from gristmill.core.step import link_counting_kernels
from gristmill.recipe.load import parse_recipe
from gristmill.steps.quality.filters import ENGLISH, Code, Fineweb, GopherQuality, GopherRepetition, Repetition, Scores

FILTERS = [Code, Fineweb, GopherQuality, GopherRepetition, Repetition, Scores]


TEXTS = st.lists(st.sampled_from(["a b", "a", "\n", "end.\n", "x y z\n", " ", "{;", "0", "中文", "…"]), max_size=30)


@functools.lru_cache(500)  # all filters are tried on the same texts
def english_scores(text):
    return scores_of(text, ENGLISH)


BAD_INPUT = {
    "empty": "",
    "only whitespace": " \t\r\n\u3000\u2028",
    "one character": "x",
    "few words": "one two three four five six seven eight nine",
    "no newline": "All on one line, and that is that.",
    "CRLF": "one\r\n\r\ntwo\r\n",
    "BOM": "\ufefftext",
    "only a BOM": "\ufeff",
    "zero width": "\u200b\u200c\u200d\u2060",
    "combining marks": "e\u0301\u0302 \u0301",
    "right to left": "שלום עולם. مرحبا بالعالم!",
    "emoji": "👩\u200d🌾🌾 🏳\ufe0f\u200d🌈",
    "surrogate planes": "𠀀𠀁 🜁 \U0010ffff",
    "nulls": "\x00\x00 \x00",
}


@pytest.mark.parametrize("page", BAD_INPUT.values(), ids=BAD_INPUT)
@pytest.mark.parametrize("step_type", FILTERS)
def test_bad_input(step_type, page):
    check(step_type(), [page])
    assert step_type().explain(documents([page])) or step_type is Scores  # no rule is on


def test_null_switches_a_rule_off_and_its_pass_too():
    step = GopherRepetition(**{rule.name: None for rule in GopherRepetition().rules})
    assert not step.apply(documents(["a a a a a"] * 3), seed=0).dropped
    assert step.apply(documents([""]), seed=0).dropped == {"empty": 1}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("gopher_quality: {min_word: 3}", 'did you mean "min_words"'),
        ("gopher_quality: {max_hash_word_ratio: .nan}", "not a number"),
        ("gopher_quality: {by_language: {de: {min_word: 3}}}", 'did you mean "min_words"'),
        ("fineweb: {min_terminal_line_ratio: many}", "min_terminal_line_ratio"),
        ("gopher_quality: {by_language: {german: {min_words: 3}}}", 'did you mean "de"'),
        ("c4: {by_language: {Japanese: {}}}", 'did you mean "ja"'),
        ("toxicity: {by_language: {jp: list.txt}}", 'did you mean "ja"'),
        ("gopher_qualty: {}", 'did you mean "gopher_quality"'),
    ],
)
def test_mistakes_in_recipes_name_what_was_meant(step, message):
    with pytest.raises(UsageError) as raised:
        parse_recipe(f"output: out\nsources: {{a: {{read: a.jsonl}}}}\nsteps:\n  - {step}\n")
    assert message in str(raised.value)


def test_kept_scores_are_columns_and_values_of_the_record():
    step = Code(keep_scores=True)
    pages = ["abc def\nx", ""]
    applied = step.apply(documents(pages), seed=0)
    scores = scores_of(pages[0])
    for rule in step.rules:
        if getattr(step, rule.name) is not None:
            assert applied.batch.column(f"score_{rule.score.name}").to_pylist() == [scores[rule.score.name]]
    assert "score_code_ratio" not in applied.batch.column_names
    lines = [b'{"text": "abc def\\nx", "id": 1.50}', b'{"text": ""}']
    batch = documents(pages).append_column(RECORD, pa.array(lines, RECORD_TYPE))
    [line] = step.apply(batch, seed=0).batch.column(RECORD).to_pylist()
    assert line.startswith(b'{"text":"abc def\\nx","id":1.50,"score_longest_line":7,')
    assert msgspec.json.decode(line)["score_mean_line_length"] == scores["mean_line_length"]


def test_counts_belong_to_the_rows_that_are_left():
    batch = documents(["", "one two three", "12345"])
    applied = Scores(min_words=1, max_digit_ratio=0.5).apply(batch, seed=0)
    assert texts(applied.batch) == ["one two three"]
    assert applied.counts["words"].tolist() == [3]


ALL_RULES = [
    (step_type, rule.name)
    for step_type in FILTERS
    for rule in step_type().rules
    if getattr(step_type(), rule.name) is not None
]


REPETITIVE = [
    "again and again it says the same, " * 6,
    "a b c d e f g h i j k l " * 3,
    "a b c " * 9,
    "One line.\nOne line.",
]


@settings(max_examples=60, deadline=None)
@given(
    chosen=st.lists(st.sets(st.sampled_from(ALL_RULES), min_size=1, max_size=4), min_size=2, max_size=4),
    pages=st.lists(st.sampled_from(REPETITIVE) | TEXTS.map("".join), min_size=1, max_size=5),
    is_linked=st.booleans(),
)
def test_a_chain_of_filters_judges_as_each_alone(chosen, pages, is_linked):
    chain = []
    for rules in chosen:
        for step_type in dict.fromkeys(step_type for step_type, _ in sorted(rules, key=str)):
            off = {rule.name: None for rule in step_type().rules if (step_type, rule.name) not in rules}
            chain.append(step_type(**off))
    kernels = [step.load() for step in chain]
    if is_linked:
        link_counting_kernels(kernels)
    batch, counts = documents(pages), {}
    for step, kernel in zip(chain, kernels, strict=True):
        left = texts(batch)
        applied = kernel.apply_to(Records(batch, counts=counts), 0)
        assert texts(applied.batch) == [page for page in left if not failing(step, page)]
        batch, counts = applied.batch, applied.counts
