"""Text is escaped when it becomes part of an element, once, and never again."""

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from gristmill.report.markup import Markup, element, encode_plain, escape_text, join, replace_surrogates, table


@given(st.text())
def test_no_text_can_leave_its_element(text):
    made = element("p", text, title=text)
    assert re.findall("[<>]", made) == ["<", ">", "<", ">"]
    assert made.count('"') == 2
    printable = "".join(escape_text(text))
    assert html.unescape(printable) == html.unescape(join(text))


def test_markup_is_not_escaped_again():
    inner = element("b", "a & b")
    assert element("p", inner, " < ", [inner, None]) == ("<p><b>a &amp; b</b> &lt; <b>a &amp; b</b></p>")
    assert isinstance(join(inner), Markup)


def test_what_controls_a_terminal_or_turns_text_around_is_shown_as_its_code():
    assert escape_text("\x1b[0m \u202e") == "\\x1b[0m \\u202e"


def test_a_long_table_says_how_many_rows_it_leaves_out():
    made = table(("name", "rows"), [("web", n) for n in range(5)], max_rows=2)
    assert made.count("<tr>") == 1 + 2 + 1
    assert "3 more" in made


def test_lone_surrogates_are_no_error():
    assert replace_surrogates("a\ud800") == "a?"
    assert encode_plain({"a\ud800": ["\ud800"]})
