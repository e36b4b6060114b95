"""Thresholds by language."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps.quality.c4 import C4
from gristmill.steps.quality.filters import GopherQuality, GopherRepetition


def test_tables_by_language():
    step = GopherQuality(
        min_words=3,
        min_mean_word_length=None,
        by_language={"zh": {"min_words": 2, "stop_words": ["的", "是"]}, "de-AT": {"min_stop_words": None}},
    )
    pages = ["the of and", "我的是", "我的是", "ein schönes Wort", "ein schönes Wort", "a b"]
    batch = documents(pages, language=["en", "zh-Hans", "en", "DE_at", "de", None])
    applied = step.apply(batch, seed=0)
    assert texts(applied.batch) == [pages[0], pages[1], pages[3]]
    assert applied.dropped == {"min_words": 1, "min_stop_words": 2}
    found = step.explain(batch.slice(1, 1))
    assert {finding.rule: finding.threshold for finding in found}["min_words"] == 2


@pytest.mark.parametrize("step", [GopherQuality(by_language={"de": {"min_words": 3}}), C4(by_language={"de": {}})])
def test_languages_that_are_no_text_are_refused(step):
    batch = documents(["a b"], language=[3])
    for judge in (lambda: step.output_schema(batch.schema), lambda: step.apply(batch, seed=0)):
        with pytest.raises(UsageError, match='"language" holds int64'):
            judge()


THAI = "สวัสดีครับ วันนี้อากาศดีมาก เราจะไปเดินเล่นที่สวนสาธารณะกัน"


def test_the_plan_names_languages_without_a_table():
    thai, german = documents([THAI] * 3), documents(["Guten Tag, das ist ein ganz normaler deutscher Satz."])
    [note] = GopherQuality().sample_notes(thai)
    assert "th" in note
    assert "3 of 3" in note
    assert not GopherQuality().sample_notes(documents(["This is a plain English sentence, and that is that."]))
    assert not GopherQuality(by_language={"th": {"min_words": 3}, "de-AT": {}}).sample_notes(thai)
    assert C4().sample_notes(german)
    assert not GopherRepetition().sample_notes(thai)  # the same for all languages
    assert GopherRepetition(by_language={"de": {}}).sample_notes(thai)


def test_the_column_says_which_languages_there_are():
    batch = documents([THAI] * 4, language=["pt-BR", "en-GB", None, "und"])
    [note] = GopherQuality().sample_notes(batch)
    assert "pt-BR (1 of 4 sample records)" in note
    assert not GopherQuality(by_language={"pt": {}}).sample_notes(batch)
