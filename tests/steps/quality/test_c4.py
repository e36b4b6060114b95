"""C4's rules in their order, against a slow reference."""

from collections import Counter

import pytest
from gristmill_testing.c4_reference import clean
from gristmill_testing.shared_data import corpus_texts

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps.quality.c4 import C4
from gristmill.text.quality.c4_lines import PARAMETERS


def check(step, pages):
    parameters = {name: getattr(step, name) for name in PARAMETERS}
    wanted = [clean(page, parameters) for page in pages]
    applied = step.apply(documents(pages), seed=0)
    assert texts(applied.batch) == [text for text, _, _ in wanted if text is not None]
    assert applied.dropped == Counter(reason for _, reason, _ in wanted if reason is not None)
    removed = Counter(f"lines_removed:{rule}" for _, _, rules in wanted for rule in rules)
    assert applied.counters == removed


@pytest.mark.parametrize(
    ("pages", "translations"), [("python_manual", "many_languages"), ("kubernetes_website", "webdev_translations")]
)
def test_real_documents(pages, translations):
    check(C4(require_terminal_punctuation=None), corpus_texts(pages, 75))
    check(C4(), corpus_texts(translations, 60))


SENTENCE = "This is a line of some words."


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
