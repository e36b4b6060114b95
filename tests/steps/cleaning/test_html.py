import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps import Html
from gristmill.steps.cleaning.html import MAX_DEPTH, is_html, is_too_deep

pytest.importorskip("resiliparse")


def nest(depth, beginning="<div>", end="</div>"):
    return beginning * depth + "bread and butter" + end * depth


@pytest.mark.parametrize(
    "page",
    [
        nest(MAX_DEPTH + 1),
        nest(200_000),
        nest(MAX_DEPTH + 1, "<DIV class='a'>", ""),
        nest(MAX_DEPTH + 1, "<div></x>", ""),
        nest(MAX_DEPTH // 2 + 1, "<section><span>", "</span></section>"),
    ],
    ids=["closed", "very deep", "open", "with ends that close nothing", "two elements"],
)
def test_pages_that_are_nested_too_deep_are_dropped(page):
    result = Html().apply(documents([page, "<p>kept</p>", "<p> </p>"]), seed=0)
    assert texts(result.batch) == ["kept"]
    assert result.dropped == {"empty": 1, "too_deep": 1}
    assert result.codes.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "page",
    [
        nest(MAX_DEPTH),
        "<ul>" + "<li>one <br> <a href=x>two" * 3000,
        "<table>" + "<tr><td>one<td>two" * 3000,
        "<script>" + r"x('<div><\/div>');" * 3000 + "</script><p>text",
        "<div><b>one</b></div>" * 3000,
    ],
    ids=["as deep as may be", "list", "table", "script", "many elements"],
)
def test_long_pages_are_not_deep(page):
    assert not is_too_deep(page)


@given(st.text("<>a/!&;#1 \n", max_size=20))
def test_a_page_is_known_by_a_whole_tag_or_entity(text):
    pattern = r"<[a-zA-Z!/][^>]*>|&[#a-zA-Z][a-zA-Z0-9]{1,8};"
    assert is_html(text) == pc.match_substring_regex(pa.array([text]), pattern)[0].as_py()


ARTICLE = (
    "<html><body><nav><a href='/'>Home</a></nav><article><h1>Bread</h1>"
    + "".join(
        f"<p>Paragraph {number} is about bread and butter, and about how both are made at home.</p>"
        for number in range(9)
    )
    + "<ul><li>flour</li><li>water</li></ul></article><footer>Imprint</footer></body></html>"
)


def test_trafilatura_on_request():
    pytest.importorskip("trafilatura")
    pages = [ARTICLE, "<p>R&amp;D", "R&amp;D", "a < b", "<p> </p>", nest(MAX_DEPTH + 1)]
    result = Html(extractor="trafilatura").apply(documents(pages), seed=0)
    article, *others = texts(result.batch)
    lines = article.splitlines()
    assert (lines[0], lines[1], lines[-2:]) == (
        "Bread",
        "Paragraph 0 is about bread and butter, and about how both are made at home.",
        ["- flour", "- water"],
    )
    assert others == ["R&D", "R&D", "a < b"]
    assert result.dropped == {"empty": 1, "too_deep": 1}


def test_both_extractors_leave_out_comments_on_request():
    pytest.importorskip("trafilatura")
    page = ARTICLE.replace(
        "</article>", "<div id='comments' class='comments'><p>First comment of a reader!</p></div></article>"
    )
    for extractor in ("resiliparse", "trafilatura"):
        (text,) = texts(Html(extractor=extractor, comments=False).apply(documents([page]), seed=0).batch)
        assert "First comment" not in text
        assert "Paragraph 8" in text


def test_a_missing_extractor_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(UsageError, match="trafilatura") as error:
        Html(extractor="trafilatura").resolve(".")
    assert ".[trafilatura]" in error.value.help


@pytest.mark.parametrize("keys", [{"main_content": False}, {"formatting": False}, {"alt_texts": True}])
def test_keys_that_trafilatura_does_not_have_are_refused(keys):
    with pytest.raises(UsageError, match=next(iter(keys))):
        Html(extractor="trafilatura", **keys)
