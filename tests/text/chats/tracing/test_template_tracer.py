"""Plans of a template: when they are made, their limits, and that no text of others is in their code."""

import time

import pytest

from gristmill.core.errors import ParityError
from gristmill.text.chats.jinja_environment import TemplateTimeout
from gristmill.text.chats.templates import ChatTemplate
from gristmill.text.chats.tracing import template_tracer
from gristmill.text.chats.tracing.plans import TextPlan
from gristmill.text.chats.tracing.template_tracer import MAX_PLANS_PER_OUTLINE, NUM_COMPARED, TemplateTracer

GROWING = "{% set ns = namespace(x=messages[0].content) %}"
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"


def chat(*contents):
    return [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(contents)]


def render(tracer, messages, jinja=None, variables=None):
    tracer.begin_record()
    return tracer.render(messages, None, variables or {}, jinja or (lambda: pytest.fail("not asked for")))


def test_the_third_conversation_of_an_outline_is_traced_and_three_are_compared():
    template, tracer = ChatTemplate(CHATML, {}), TemplateTracer(CHATML, {}, None, None)
    assert [render(tracer, chat("a", f"{n}")) for n in range(2)] == [None, None]
    asked = []
    for number in range(8):
        messages = chat("a", str(number))

        def with_jinja(messages=messages):
            asked.append(messages)
            return template.render(messages)

        assert render(tracer, messages, with_jinja) == f"<user>a</s><assistant>{number}</s>"
    assert len(asked) == NUM_COMPARED
    assert render(tracer, chat("a", "b", "c")) is None, "another outline"


def test_one_record_that_is_rendered_often_is_one_occurrence():
    tracer = TemplateTracer(CHATML, {}, None, None)
    tracer.begin_record()
    texts = [tracer.render(chat("a", f"{n}"), None, {}, lambda: pytest.fail("not asked for")) for n in range(9)]
    assert texts == [None] * 9


def test_a_difference_ends_the_run_and_shows_the_record():
    tracer = TemplateTracer(CHATML, {}, None, None, min_occurrences=1)
    with pytest.raises(ParityError, match=r"writes .*words.* where Jinja writes .*others") as caught:
        render(tracer, chat("some words", "b"), lambda: "<user>some others</s>")
    assert "some words" in caught.value.message
    assert "trace: off" in caught.value.help


def test_the_code_of_a_plan_has_no_text_of_the_template_or_the_record():
    source = (
        "{% for m in messages %}{{ '''it\"s''' + m.role }}{% if 'secret' in m.content %}1{% endif %}"
        "{{ m.content.split('</x>')[-1].replace('q', 'r')[2:]|tojson }}{% endfor %}"
    )
    template, tracer = ChatTemplate(source, {}), TemplateTracer(source, {}, None, None, min_occurrences=1)
    messages = [{"role": "x'; import os; '", "content": "__import__('os') secret</x>"}]
    assert render(tracer, messages, lambda: template.render(messages)) == template.render(messages)
    [outline] = tracer._outlines.values()
    code = outline.plans[0].fill.__code__
    assert {constant for constant in code.co_consts if isinstance(constant, str)} <= {""}
    assert outline.plans[0].fill.__globals__["__builtins__"] == {}
    names = {"len", "str", "quote_json", "k", "join", "split", "replace"}
    assert set(code.co_names) <= names, "only names of operations"


def test_an_outline_has_a_limited_number_of_plans(monkeypatch):
    questions = "".join(f"{{% if 'w{n}.' in m.content %}}{n}{{% endif %}}" for n in range(80))
    source = f"{{% for m in messages %}}{questions}{{% endfor %}}"
    tracer = TemplateTracer(source, {}, None, None, min_occurrences=1)
    template = ChatTemplate(source, {})
    for number in range(80):
        messages = chat(f"w{number}.")
        text = render(tracer, messages, lambda messages=messages: template.render(messages))
        assert text == (str(number) if number < MAX_PLANS_PER_OUTLINE else None)


def test_a_template_has_a_limited_number_of_plans():
    tracer = TemplateTracer(CHATML, {}, None, None, min_occurrences=1, max_plans=2)
    for contents in (["a"], ["a", "b"]):
        expected = ChatTemplate(CHATML, {}).render(chat(*contents))
        assert render(tracer, chat(*contents), lambda expected=expected: expected) == expected
    assert render(tracer, chat("a", "b", "c")) is None


def test_long_conversations_and_unusual_values_are_left_to_jinja():
    tracer = TemplateTracer(CHATML, {}, None, None, min_occurrences=1)
    assert render(tracer, chat(*["a"] * 64), lambda: "".join("<user>a</s><assistant>a</s>" for _ in range(32)))
    assert render(tracer, chat(*["a"] * 65)) is None
    assert render(tracer, [{"role": "user", "content": "a", "x": object()}]) is None
    assert render(tracer, chat("a"), variables={"x": [1]}) is None


def test_variables_are_constants_and_part_of_the_outline():
    source = "{{ messages[0].content }}{% if x is true %}T{% elif x == 1 %}1{% endif %}{{ x }}"
    template, tracer = ChatTemplate(source, {}), TemplateTracer(source, {}, None, None, min_occurrences=1)
    for value in (True, 1, 1.0, "1", None):
        variables = {"x": value}
        expected = template.render(chat("a"), None, variables)
        assert render(tracer, chat("a"), lambda expected=expected: expected, variables) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{{ messages[0].content|trim ~ i }}{% endfor %}",
        f"{GROWING}{{% for i in range(60) %}}{{% set ns.x = ns.x ~ ns.x %}}{{% endfor %}}",
        f"{GROWING}{{% for i in range(60) %}}{{% set ns.x = (ns.x ~ ns.x)|trim %}}{{% endfor %}}{{{{ ns.x|length }}}}",
        f"{GROWING}{{% for i in range(9999) %}}{{% set ns.x = (ns.x ~ 'a')|trim %}}{{% endfor %}}{{{{ ns.x }}}}",
        "{{ messages[0].content|tojson(indent=2)|center(99999999999) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(messages[0].content) }}",
    ],
)
def test_templates_without_measure_give_up_soon(source):
    tracer = TemplateTracer(source, {}, None, None, min_occurrences=1)
    assert render(tracer, chat("word")) is None


def test_a_long_trace_closes_the_tracer_and_gives_jinja_its_whole_time(monkeypatch):
    restarts = []

    def record(*_):
        raise TemplateTimeout("took longer than 60 s")

    tracer = TemplateTracer(CHATML, {}, None, lambda: restarts.append(1), min_occurrences=1)
    clock = iter([0.0, 70.0])
    monkeypatch.setattr(template_tracer, "thread_time", lambda: next(clock, time.thread_time()))
    monkeypatch.setattr(tracer, "_record", record)
    assert render(tracer, chat("a")) is None
    assert tracer.is_closed
    assert restarts == [1]


def test_a_plan_of_a_long_chain_compiles():
    source = (
        "{% set ns = namespace(x=messages[0].content) %}{% for i in range(300) %}"
        "{% set ns.x = (ns.x ~ 'a')|replace('b', 'c') %}{% endfor %}{{ ns.x }}"
    )
    plan = TemplateTracer(source, {}, None, None).make_plan(chat("bb"))
    assert isinstance(plan, TextPlan)
    assert "".join(plan.fill(["bb"])) == "cc" + "a" * 300
