"""The environment of templates: what they may do, and what ends them."""

import datetime as dt

import pytest

from gristmill.text.chats.templates import ChatTemplate, TemplateError

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


def test_the_date_is_the_one_that_is_set():
    today = dt.date(2026, 1, 31)
    assert render("{{ strftime_now('%d %b %Y') }}", today=today) == "31 Jan 2026"
    with pytest.raises(TemplateError, match="no date is set"):
        render("{{ strftime_now('%Y') }}")


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
