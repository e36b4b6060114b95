import json

import pyarrow as pa
import pytest
from gristmill_testing.open_texts import translations
from gristmill_testing.shared_data import corpus_records

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, RECORD_TYPE, documents, texts
from gristmill.steps.language import Language

ENGLISH, GERMAN = "This is a sentence in English.", "Dieser Satz ist auf Deutsch geschrieben."


def test_tags_and_drops_nothing():
    applied = Language().apply(documents([ENGLISH, GERMAN, "1234 !", ""]), seed=0)
    assert applied.batch.column("language").to_pylist() == ["en", "de", "und", "und"]
    scores = applied.batch.column("language_score").to_pylist()
    assert min(scores[:2]) > 0.8
    assert scores[2:] == [0, 0]
    assert not applied.dropped


def test_keeps_languages():
    applied = Language(languages=["en", "fr"]).apply(documents([ENGLISH, GERMAN, "1234"]), seed=0)
    assert texts(applied.batch) == [ENGLISH]
    assert applied.dropped == {"no_letters": 1, "other_language": 1}
    assert [applied.reasons[code - 1] if code else "" for code in applied.codes] == ["", "other_language", "no_letters"]


def test_min_score():
    applied = Language(min_score=0.9).apply(documents([ENGLISH, "le the der"]), seed=0)
    assert applied.dropped == {"min_score": 1}
    [score] = applied.batch.column("language_score").to_pylist()
    assert not Language(min_score=score).apply(documents([ENGLISH]), seed=0).dropped


def test_columns_that_are_there_are_replaced_and_json_follows():
    batch = documents([ENGLISH], language=["xx"])
    line = json.dumps({"text": ENGLISH, "language": "xx"}).encode()
    batch = batch.append_column(RECORD, pa.array([line], RECORD_TYPE))
    applied = Language().apply(batch, seed=0)
    assert applied.batch.column_names == ["origin", "text", "language", "record", "language_score"]
    record = json.loads(applied.batch.column(RECORD)[0].as_py())
    assert record["language"] == "en"
    assert record["language_score"] == applied.batch.column("language_score")[0].as_py()


@pytest.mark.parametrize(("language", "meant"), [("pt-BR", "pt"), ("eng", "en"), ("german", None)])
def test_unknown_languages_are_refused(language, meant):
    with pytest.raises(UsageError) as raised:
        Language(languages=[language]).resolve(".")
    assert (f'did you mean "{meant}"' in str(raised.value)) == (meant is not None)


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), "0.5", [1], 10**400])
def test_senseless_scores_are_refused(score):
    with pytest.raises(UsageError):
        Language(min_score=score)


def test_explain():
    found = Language(languages=["en"], min_score=0.5).explain(documents([GERMAN]))
    assert [(finding.rule, finding.value == "de", finding.passed) for finding in found] == [
        ("languages", True, False),
        ("min_score", False, True),
    ]


def test_explain_names_the_rule_that_drops_what_has_no_letters():
    for step in (Language(min_score=0), Language(languages=["en"])):
        assert step.apply(documents(["1234"]), seed=0).dropped == {"no_letters": 1}
        assert [finding.rule for finding in step.explain(documents(["1234"])) if not finding.passed] == ["no_letters"]
    assert all(finding.passed for finding in Language().explain(documents(["1234"])))


def test_every_rule_that_fails_is_counted():
    applied = Language(languages=["fr"], min_score=1).apply(documents([ENGLISH, "le the der", "1"]), seed=0)
    assert applied.dropped == {"no_letters": 1, "other_language": 2}
    assert applied.counters == {"failed:no_letters": 1, "failed:other_language": 2, "failed:min_score": 2}
    assert applied.failed["min_score"].tolist() == [True, True, False]


def test_accuracy_on_sentences_in_many_languages():
    languages, texts = zip(*translations(), strict=True)
    assert Language().apply(documents(list(texts)), seed=0).batch.column("language").to_pylist() == list(languages)


def test_accuracy_on_translations():
    """Markdown with code in it, 50 languages; some of them differ by little (ms and id, hr and sr)."""
    records = [record for record in corpus_records("webdev_translations", 1000) if len(record["text"]) > 2000]
    known = {"pcm", "tl", "br", "mo", "tw", "hk"}
    records = [record for record in records if record["lang"].split("-")[0].lower() not in known]
    found = Language().apply(documents([record["text"] for record in records]), seed=0).batch
    right = [
        record["lang"].split("-")[0].lower() == language
        for record, language in zip(records, found.column("language").to_pylist(), strict=True)
    ]
    assert sum(right) / len(right) > 0.9
