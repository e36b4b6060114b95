"""One spelling, rule by rule, and that twice is once."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import documents, texts
from gristmill.steps import Normalize


def normalize(text, **keys):
    return texts(Normalize(**keys).apply(documents([text]), seed=0).batch)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e\u0301", "\u00e9"),
        ("a\r\nb\rc\r\r\nd", "a\nb\nc\n\nd"),
        ("\ufeffa\ufeffb", "ab"),
        ("a\x00\x07\x1b[0m\x7f\x85b\tc\n", "a[0mb\tc\n"),
        ("\u06cc\u200c\u0647 \U0001f468\u200d\U0001f469", "\u06cc\u200c\u0647 \U0001f468\u200d\U0001f469"),
        ("e\x00\u0301", "\u00e9"),
        ("\ufb01 \uff21", "\ufb01 \uff21"),
        ("a &amp; b   c", "a &amp; b   c"),
        ("", ""),
    ],
)
def test_defaults(text, expected):
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        ("\ufb01 \uff21", {"unicode": "NFKC"}, "fi A"),
        ("e\u0301", {"unicode": None}, "e\u0301"),
        ("a\r\n", {"newlines": False, "controls": False}, "a\r\n"),
        ("&lt;b&gt; &#228;&nbsp;&amp;lt;", {"entities": True}, "<b> ä\u00a0&lt;"),
        (" a \t b\u00a0c \n\n\n\n d \n", {"whitespace": True}, "a b c\n\nd"),
        ("a\n\nb", {"whitespace": True}, "a\n\nb"),
    ],
)
def test_on_request(text, keys, expected):
    assert normalize(text, **keys) == expected


def test_wrong_encodings_are_repaired_on_request():
    pytest.importorskip("ftfy")
    assert normalize("sch\u00c3\u00b6n", fix_encoding=True) == "schön"


def test_counts_and_changed_rows():
    applied = Normalize(whitespace=True).apply(documents(["a\r\nb", "plain", "c  d\x01"]), seed=0)
    assert applied.counters == {"changed:newlines": 1, "changed:controls": 1, "changed:whitespace": 1}
    assert applied.changed_rows.tolist() == [True, False, True]


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n\t \x00\ufeff\u0301e\u200c"), max_size=20)
)
def test_the_law(text):
    once = normalize(text)
    assert normalize(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in once)
    letters = [letter for letter in unicodedata.normalize("NFD", text) if not letter.isspace()]
    removed = {"\ufeff"} | {letter for letter in letters if unicodedata.category(letter) == "Cc"}
    assert [letter for letter in letters if letter not in removed] == [
        letter for letter in unicodedata.normalize("NFD", once) if not letter.isspace()
    ] or unicodedata.normalize("NFD", text) != text


@settings(deadline=None)
@given(st.text("ab \t\n\u00a0\r", max_size=20))
def test_whitespace_twice_is_once(text):
    once = normalize(text, whitespace=True)
    assert normalize(once, whitespace=True) == once
    assert "  " not in once
    assert "\n\n\n" not in once
