"""The rules of C4, line by line, against the reference."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.steps.quality.test_c4 import check

from gristmill.core.records import documents
from gristmill.steps.quality.c4 import C4

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


@settings(max_examples=400, deadline=None)
@given(st.lists(PAGES, max_size=4), RULES)
def test_it_does_what_the_reference_does(pages, rules):
    check(C4(**rules), pages)


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
