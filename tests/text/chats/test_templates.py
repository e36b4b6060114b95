"""The door to Jinja: what templates get, what they cannot do, and how their mistakes are told."""

import datetime as dt

import pytest

from gristmill.core.errors import UsageError
from gristmill.text.chats.jinja_environment import GENERATION_END, GENERATION_START
from gristmill.text.chats.templates import ChatTemplate, TemplateError

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<b>Hello</b>"}]


def render(source, messages=CHAT, **options):
    return ChatTemplate(source, {}, **options).render(messages)


def test_a_template_can_refuse_a_conversation():
    with pytest.raises(TemplateError, match="only users"):
        render("{{ raise_exception('only users') }}")


def test_templates_of_one_source_share_their_code_only():
    source = "{% generation %}{{ strftime_now('%d') }}{{ end }}{% endgeneration %}"
    first = ChatTemplate(source, {"end": "!"}, today=dt.date(2026, 1, 31))
    second = ChatTemplate(source, {"end": "?"}, today=dt.date(2026, 2, 1))
    assert (first.render(CHAT), second.render(CHAT)) == ("31!", "01?")
    assert second.render_marked(CHAT) == f"{GENERATION_START}01?{GENERATION_END}"
    with pytest.raises(TemplateError, match="no date is set"):
        render(source)


def test_what_the_assistant_writes_is_marked_only_on_request():
    template = ChatTemplate(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}", {}
    )
    assert template.marks_generation
    assert template.render(CHAT) == "Hi;<b>Hello</b>;"
    marked = template.render_marked(CHAT)
    assert marked == f"{GENERATION_START}Hi{GENERATION_END};{GENERATION_START}<b>Hello</b>{GENERATION_END};"
    assert not ChatTemplate("{% if add_generation_prompt %}{% endif %}", {}).marks_generation


@pytest.mark.parametrize(
    ("source", "line", "told"),
    [
        ("one\n{% if x %}\n{{ y }}", 3, "endif"),
        ("{{ 1 +* 2 }}", 1, "unexpected"),
        ("a\nb\n{% nothing %}", 3, "nothing"),
    ],
)
def test_a_mistake_is_shown_with_its_line(source, line, told):
    with pytest.raises(UsageError, match=f"line {line}:") as caught:
        ChatTemplate(source, {}, name="chat.jinja")
    assert told in str(caught.value)
    assert "chat.jinja" in str(caught.value)
