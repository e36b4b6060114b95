"""C4's rules in their order, against a slow reference."""

from collections import Counter

import pytest
from gristmill_testing.c4_reference import clean
from gristmill_testing.shared_data import corpus_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.sample_batches import documents, texts
from gristmill.steps.quality.c4 import C4
from gristmill.text.quality.c4_lines import PARAMETERS

WORDS = [
    *("one", "two", "Three", "four five six", "a" * 12, "Lorem", "ipsum", "lorem IPSUM", "JavaScript", "{"),
    *("[1]", "[]", "[edit]", "[Edit]", "[citation needed]", "Terms of Use", "use cookies", "中文你好吗", "。", "."),
    *("...", "…", "!", '"', "”", ".)", "(", "Dr.", "\u3000", "\x1f"),
]
LINES = st.lists(st.sampled_from(WORDS), max_size=9).flatmap(
    lambda words: st.sampled_from([" ", ""]).map(lambda gap: gap.join(words))
)
PAGES = st.lists(LINES | st.text(max_size=12), max_size=6).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", " \n"]).map(lambda end: end.join(lines))
)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "max_characters": st.sampled_from([None, 40]),
        "max_word_length": st.sampled_from([None, 10]),
        "remove_citations": st.booleans(),
        "require_terminal_punctuation": st.booleans(),
        "min_words_per_line": st.sampled_from([None, 1, 3]),
        "drop_lorem_ipsum": st.booleans(),
        "remove_javascript_lines": st.booleans(),
        "drop_curly_brackets": st.booleans(),
        "remove_policy_lines": st.booleans(),
        "min_sentences": st.sampled_from([None, 1, 2]),
    },
)


def check(step, pages):
    parameters = {name: getattr(step, name) for name in PARAMETERS}
    wanted = [clean(page, parameters) for page in pages]
    applied = step.apply(documents(pages), seed=0)
    assert texts(applied.batch) == [text for text, _, _ in wanted if text is not None]
    assert applied.dropped == Counter(reason for _, reason, _ in wanted if reason is not None)
    removed = Counter(f"lines_removed:{rule}" for _, _, rules in wanted for rule in rules)
    assert applied.counters == removed


@settings(max_examples=400, deadline=None)
@given(st.lists(PAGES, max_size=4), RULES)
def test_it_does_what_the_reference_does(pages, rules):
    check(C4(**rules), pages)


@pytest.mark.parametrize(
    ("pages", "translations"), [("python_manual", "many_languages"), ("kubernetes_website", "webdev_translations")]
)
def test_real_documents(pages, translations):
    check(C4(require_terminal_punctuation=None), corpus_texts(pages, 75))
    check(C4(), corpus_texts(translations, 60))


SENTENCE = "This is a line of some words."


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (f"{SENTENCE}\nThis line is full of {'{'} here.", "drop_curly_brackets"),
        (f"{SENTENCE}\nBuy lorem ipsum and other words {{.", "drop_lorem_ipsum"),
        # Rules that come first have removed the line that would have dropped the page.
        (f"{SENTENCE}\nif (x) {{\n{SENTENCE}\n{SENTENCE}", None),
        (f"{SENTENCE}\n{{ too short.\n{SENTENCE}\n{SENTENCE}", None),
        (f"{SENTENCE}\nTurn on JavaScript in your browser {{ now.\n{SENTENCE}\n{SENTENCE}", None),
        (f"{SENTENCE}\nOur privacy policy is here {{ to read.", "drop_curly_brackets"),
        (f"{SENTENCE}\n{SENTENCE}", "min_sentences"),
        (f"{SENTENCE} {SENTENCE} {SENTENCE}", None),
        ("x" * 190_001, "max_characters"),
        (" \r\n\t", "empty"),
        ("no end", "min_sentences"),
    ],
)
def test_the_order_of_the_rules(page, reason):
    assert list(C4().apply(documents([page]), seed=0).dropped) == ([reason] if reason else [])


def test_by_language():
    step = C4(by_language={"zh": {"min_words_per_line": None, "min_sentences": 1}})
    batch = documents(["好。", "好。", "Well."], language=["zh", "en", "zh_TW"])
    assert step.apply(batch, seed=0).batch.column("language").to_pylist() == ["zh", "zh_TW"]
    with pytest.raises(UsageError, match="min_sentence"):
        C4(by_language={"zh": {"min_sentence": 1}})


def test_explain():
    found = C4().explain(documents([f"Menu\n{SENTENCE}\nIt has a brace {{ in a line."]))
    assert [(finding.rule, finding.passed) for finding in found] == [
        ("require_terminal_punctuation", True),
        ("drop_curly_brackets", False),
    ]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_characters": 10**400}, "max_characters: .*too large"),
        ({"max_characters": -1}, "max_characters must be at least 0"),
        ({"by_language": {"de": {"min_sentences": -2}}}, "min_sentences must be at least 0"),
        ({"min_sentences": "three"}, "min_sentences: Expected `int"),
        ({"drop_lorem_ipsum": 7}, "drop_lorem_ipsum: Expected `bool"),
    ],
)
def test_senseless_numbers_are_refused(parameters, message):
    with pytest.raises(UsageError, match=message):
        C4(**parameters)
