import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps.toxicity import Toxicity


def densities(step, pages, **columns):
    return step.apply(documents(pages, **columns), seed=0).batch.column("toxicity").to_pylist()


def test_words_between_borders():
    step = Toxicity(lists={"": ["ass", "bad word", "Öl"]})
    pages = ["class of ass", "ASS ass, ass!", "a bad\nword.", "bad-word", "ÖL öle", "asses", "", "...", "bad, bad"]
    assert densities(step, pages) == [1 / 3, 1, 1 / 3, 1 / 2, 1 / 2, 0, 0, 0, 0]


def test_without_borders_in_japanese_thai_and_chinese():
    step = Toxicity(lists={"zh": ["坏"], "de": ["böse"]})
    found = densities(step, ["这是坏的。", "这是坏的。", "das böse Wort", "böse"], language=["zh-CN", "de", "de", None])
    assert found == [1 / 4, 0, 1 / 3, 0]


def test_the_common_list_has_no_borders_in_such_documents():
    step = Toxicity(lists={"": ["坏", "bad"]})
    found = densities(step, ["这是坏的。", "这是坏的。", "badge bad", "坏"], language=["zh", "en", "en", None])
    assert found == [1 / 4, 0, 1 / 2, 1]
    assert densities(step, ["这是坏的。"]) == [0]
    assert densities(step, ["这是坏的。"], language=[3]) == [0]


def test_what_has_symbols_is_found_as_it_is_written():
    step = Toxicity(lists={"": ["a$$", "🖕", "f*ck", "No $$ here", "\\"]})
    pages = [
        "a as A$$, a$$",
        "xa$$",
        "f*ck f*ck,F*CK",
        "f ck ff*ck f*cks",
        "🖕🖕",
        "go 🖕",
        "no  $$\nhere",
        "a\\b",
        "s",
    ]
    assert densities(step, pages) == [2 / 4, 0, 3 / 6, 0, 1, 1 / 2, 1 / 2, 1 / 3, 0]
    assert densities(Toxicity(lists={"": ["🖕"]}, allow=["🖕"]), ["🖕"]) == [0]


@given(
    words=st.lists(st.text("ab$% 坏\0", min_size=1).filter(str.strip), min_size=1, max_size=5),
    page=st.text("ab$% 坏\0"),
    language=st.sampled_from(["en", "zh"]),
)
def test_the_density_is_a_share(words, page, language):
    [density] = densities(Toxicity(lists={"": words}), [page], language=[language])
    assert 0 <= density <= 1


def test_a_long_list():
    words = [f"word{number:x}x" for number in range(20_000)]
    assert densities(Toxicity(lists={"": words}), ["word0x word4e1fx word4e20x other"]) == [1 / 2]


def test_a_list_that_is_too_long_is_refused():
    with pytest.raises(UsageError, match="of 150,000 words is too long"):
        Toxicity(lists={"": [f"{number * 7919:x}" * 2 for number in range(150_000)]}).resolve(".")


def test_what_is_allowed_does_not_count():
    assert densities(Toxicity(lists={"": ["gay", "darn"]}, allow=["Gay"]), ["gay darn"]) == [1 / 2]
    assert densities(Toxicity(lists={"": ["gay"]}, allow=["gay"]), ["gay"]) == [0]


def test_drops_only_if_asked_to():
    pages = ["darn darn", "darn it", "fine"]
    assert texts(Toxicity(lists={"": ["darn"]}).apply(documents(pages), seed=0).batch) == pages
    applied = Toxicity(lists={"": ["darn"]}, max_density=0.5).apply(documents(pages), seed=0)
    assert texts(applied.batch) == pages[1:]
    assert applied.dropped == {"max_density": 1}


def test_lists_are_read_when_a_run_is_planned(tmp_path):
    (tmp_path / "en.txt").write_text("\ufeffdarn\n\n  bad word \n")
    step = Toxicity(words="en.txt", by_language={"de": "package:gristmill_words/de.txt"})
    package = tmp_path / "gristmill_words"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('a list is data: nothing is imported')")
    (package / "de.txt").write_text("böse\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert step.resolve(str(tmp_path)).lists == {"": ["darn", "bad word"], "de": ["böse"]}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "needs a list"),
        ({"words": "a.txt", "max_density": float("nan")}, "max_density"),
        ({"words": "a.txt", "max_density": 2}, "max_density"),
    ],
)
def test_senseless_parameters_are_refused(parameters, message):
    with pytest.raises(UsageError, match=message):
        Toxicity(**parameters)


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        ("none.txt", None, "cannot read"),
        ("empty.txt", b"\n \n", "is empty"),
        ("latin.txt", b"\xff\xfe", "not UTF-8"),
        ("package:no_such_package/a.txt", None, "no package"),
        ("package:../a.txt", None, "no package"),
    ],
)
def test_lists_that_cannot_be_read_are_refused(tmp_path, words, content, message):
    if content is not None:
        (tmp_path / words).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        Toxicity(words=words).resolve(str(tmp_path))


def test_explain():
    [finding] = Toxicity(lists={"": ["darn"]}, max_density=0.1).explain(documents(["darn it"]))
    assert (finding.value, finding.threshold, finding.passed) == (0.5, 0.1, False)
