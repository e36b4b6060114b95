import pytest

from gristmill.core.errors import UsageError
from gristmill.text.language_codes import check_language_code, find_nearest_code, normalize_language_code


@pytest.mark.parametrize("code", ["en", "pt-BR", "zh_Hant", "yue", "DE", "cmn_Hani"])
def test_codes_with_regions_and_scripts_are_taken(code):
    check_language_code(code, "by_language")
    assert normalize_language_code(normalize_language_code(code)) == normalize_language_code(code)


@pytest.mark.parametrize(("word", "meant"), [("german", '"de"'), ("jp", '"ja"'), ("xx", "codes such as")])
def test_what_is_no_code_is_refused_with_the_one_that_was_meant(word, meant):
    with pytest.raises(UsageError, match=meant):
        check_language_code(word, "by_language")


def test_codes_of_one_language_are_one():
    assert len({normalize_language_code(code) for code in ("de", "deu", "ger", "DE")}) == 1
    assert normalize_language_code("pt_BR") == normalize_language_code("por-br")


def test_only_what_is_near_is_meant():
    assert find_nearest_code("japanes") == "ja"
    assert find_nearest_code("-") is None
