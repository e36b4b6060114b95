"""The door to Jinja: what templates get, what they cannot do, and how their mistakes are told."""

import datetime as dt

import pytest

from gristmill.core.errors import UsageError
from gristmill.text.chats.jinja import ChatTemplate, TemplateError
from gristmill.text.chats.jinja_environment import GENERATION_END, GENERATION_START

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<b>Hello</b>"}]


def render(source, messages=CHAT, **options):
    return ChatTemplate(source, {}, **options).render(messages)


def test_json_is_written_as_it_is():
    assert render("{{ messages[1].content | tojson }}") == '"<b>Hello</b>"'
    assert render("{{ {'b': 1, 'a': 'ü'} | tojson(indent=None, sort_keys=True) }}") == '{"a": "ü", "b": 1}'


def test_blocks_leave_no_lines_behind():
    assert (
        render("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}")
        == "user\nassistant\n"
    )


def test_loops_can_be_left():
    assert render("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}") == "user"


def test_a_template_can_refuse_a_conversation():
    with pytest.raises(TemplateError, match="only users"):
        render("{{ raise_exception('only users') }}")


def test_the_date_is_the_one_that_is_set():
    today = dt.date(2026, 1, 31)
    assert render("{{ strftime_now('%d %b %Y') }}", today=today) == "31 Jan 2026"
    with pytest.raises(TemplateError, match="no date is set"):
        render("{{ strftime_now('%Y') }}")


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


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
        "{{ '{0.__class__.__init__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% set n = namespace(_x=1) %}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% for i in range(999999999) %}{% endfor %}",
    ],
)
def test_a_malicious_template_gets_nowhere(source):
    template = ChatTemplate(source, {})
    chat = [dict(message) for message in CHAT]
    try:
        text = template.render(chat)
    except TemplateError:
        text = ""
    assert not text  # what the sandbox hands out as undefined renders as nothing
    assert chat == CHAT


def test_a_macro_that_calls_itself_ends():
    with pytest.raises(TemplateError, match=r"without end|recursion"):
        render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


def test_want_of_memory_is_not_the_templates_fault():
    class Large(dict):
        def __getitem__(self, name):
            raise MemoryError

    with pytest.raises(MemoryError):
        render("{{ messages[0]['content'] }}", [Large()])
