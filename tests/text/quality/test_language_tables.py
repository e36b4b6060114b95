# ruff: noqa: E501, RUF001
"""The built-in tables of languages: whole, valid, and used where a recipe asks for them."""

import pyarrow as pa
import pytest
from gristmill_testing.shared_data import corpus_records

from gristmill import steps
from gristmill.core.records import documents
from gristmill.steps.quality.languages import load_language_tables

FINNISH = """Mylly seisoo joen rannalla, ja se on ollut siellä niin kauan kuin ihmiset muistavat. Aamulla mylläri avaa
portin, vesi alkaa juosta ja raskas ratas kääntyy niin, että ääni kuuluu koko laaksossa. Kun maanviljelijät tuovat
vehnää ja ruista säkeissä, he odottavat, puhuvat säästä ja lähtevät kotiin mukanaan jauhot, jotka ovat vielä lämpimiä."""
CHINESE = """磨坊在河边，从人们记得的时候起它就在那里。早上，磨坊主打开闸门，水开始流动，沉重的轮子转了起来，整个山谷都能听见这个声音。
农民们用袋子带来小麦和黑麦，他们在这里等待，谈论天气，然后带着还有余温的面粉回家。
一个人一天可以用这个磨坊磨很多面粉，你想不到有多少。"""


def make_batch(texts, languages):
    batch = documents(texts)
    return batch.append_column("language", pa.array(languages, pa.string()))


def test_there_are_tables_for_at_least_30_languages():
    tables = load_language_tables()
    assert len(tables) >= 30
    for step in (steps.GopherQuality, steps.GopherRepetition, steps.Fineweb, steps.C4):
        by_language = {language: table.get(step().name, {}) for language, table in tables.items()}
        assert step(language_tables="built_in").resolve(".").by_language == by_language
    with_stop_words = [table for table in tables.values() if table["gopher_quality"].get("stop_words")]
    assert len(with_stop_words) >= len(tables) - 6
    assert all(len(set(table["gopher_quality"]["stop_words"])) >= 6 for table in with_stop_words)


@pytest.mark.parametrize(("text", "language"), [(FINNISH, "fi"), (CHINESE, "zh"), (CHINESE, "zh-Hans")])
def test_prose_is_kept_with_the_table_of_its_language(text, language):
    batch = make_batch([text.replace("\n", "" if language != "fi" else " ")], [language])
    assert steps.GopherQuality(language_tables="built_in").apply(batch, seed=0).batch.num_rows == 1
    assert steps.GopherQuality().apply(batch, seed=0).batch.num_rows == 0
    wrong = make_batch([text.replace("\n", "" if language != "fi" else " ")], ["ru"])
    assert steps.GopherQuality(language_tables="built_in").apply(wrong, seed=0).batch.num_rows == 0


def repeat_phrases(num_words):
    """Write ten phrases of so many words twice each, with 15 words of their own after each of them."""
    words = iter(f"từ{number}" for number in range(1000))
    phrases = [" ".join(next(words) for _ in range(num_words)) for _ in range(10)]
    return " ".join(" ".join([phrase, *(next(words) for _ in range(15))]) for phrase in phrases * 2)


def test_a_word_of_vietnamese_is_half_a_word_piece():
    """Its words are syllables, of which six say what three or four English words say: they may occur again."""
    texts = make_batch([repeat_phrases(6), repeat_phrases(10)], ["vi", "vi"])
    built_in = steps.GopherRepetition(language_tables="built_in")
    assert steps.GopherRepetition().apply(texts, seed=0).dropped == {"max_duplicate_5_gram_ratio": 2}
    assert built_in.apply(texts, seed=0).dropped == {"max_duplicate_8_gram_ratio": 1}
    german = make_batch([repeat_phrases(6)], ["de"])
    assert built_in.apply(german, seed=0).dropped == {"max_duplicate_5_gram_ratio": 1}


def test_own_values_come_first():
    step = steps.GopherQuality(language_tables="built_in", min_words=7, by_language={"fi": {"max_words": 9}}).resolve(
        "."
    )
    assert "min_words" not in step.by_language["fi"]
    assert step.by_language["fi"]["max_words"] == 9
    assert step.by_language["fi"]["stop_words"] == load_language_tables()["fi"]["gopher_quality"]["stop_words"]
    assert steps.GopherQuality().resolve(".").by_language == {}


def test_lines_of_chinese_pages():
    page = "很短。\n" + CHINESE.replace("\n", "")
    batch = make_batch([page], ["zh"])
    kept = steps.C4(language_tables="built_in", min_sentences=1).apply(batch, seed=0).batch.column("text").to_pylist()
    assert kept == [CHINESE.replace("\n", "")]


def test_words_of_other_languages_and_code_are_between_those_of_a_language():
    """A page in Japanese with English names and code has words of both lengths."""
    for table in load_language_tables().values():
        assert table["gopher_quality"]["min_mean_word_length"] <= 3
        assert table["gopher_quality"]["max_mean_word_length"] >= 10


def test_translations_are_kept_as_often_as_the_english_pages():
    """Kubernetes' documentation, of which the tables have seen nothing."""
    pages = {}
    for record in corpus_records("kubernetes_website", 10_000):
        _, language, path = record["id"].partition(f"/content/{record['lang']}/")
        if language:
            pages.setdefault(record["lang"], {})[path] = record["text"]
    step = steps.GopherQuality(language_tables="built_in")
    for language in ("ja", "ko", "fr", "ru", "id"):
        shared = sorted(pages["en"].keys() & pages[language].keys())
        kept = [
            step.apply(make_batch([pages[code][path] for path in shared], [code] * len(shared)), seed=0).batch.num_rows
            for code in ("en", language)
        ]
        assert len(shared) > 20
        assert abs(kept[0] - kept[1]) < 0.1 * len(shared), language


@pytest.mark.parametrize("language", ["th", "tha", "tha_Thai", "my", "mya", "khm", "lao"])
def test_lines_may_end_without_a_mark_where_no_mark_is_written(language):
    page = "\n".join("ข่าว" * 20 + str(number) for number in range(12))
    batch = make_batch([page], [language])
    assert steps.Fineweb().apply(batch, seed=0).dropped == {"min_terminal_line_ratio": 1}
    assert steps.Fineweb(language_tables="built_in").apply(batch, seed=0).dropped == {}
    kept = steps.C4(language_tables="built_in").apply(batch, seed=0)
    assert kept.batch.column("text").to_pylist() == [page]


@pytest.mark.parametrize(
    ("two", "three"), [("fi", "fin"), ("zh", "zho"), ("zh", "chi"), ("zh", "cmn_Hani"), ("de", "deu")]
)
def test_codes_of_three_letters_find_the_tables(two, three):
    batches = [make_batch([FINNISH, CHINESE], [code, code]) for code in (two, three)]
    step = steps.GopherQuality(language_tables="built_in", keep_scores=True)
    one, other = (step.apply(batch, seed=0) for batch in batches)
    assert one.codes.tolist() == other.codes.tolist()
    assert not steps.GopherQuality(language_tables="built_in").resolve(".").sample_notes(batches[1])
    changed = steps.GopherQuality(language_tables="built_in", by_language={three.split("_")[0]: {"min_words": 10_000}})
    assert changed.apply(batches[0], seed=0).dropped == {"min_words": 2}


def test_the_plan_names_languages_without_a_table():
    batch = make_batch([FINNISH, FINNISH], ["isl", "fin"])
    (note,) = steps.GopherQuality(language_tables="built_in").resolve(".").sample_notes(batch)
    assert "isl" in note
    assert "fin" not in note
