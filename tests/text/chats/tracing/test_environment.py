"""Chats of one length that stand for all lengths: only of templates that cannot know the length."""

import random

import pytest

from gristmill.text.chats.record_plan import _split_pieces
from gristmill.text.chats.templates import ChatTemplate, TemplateError
from gristmill.text.chats.tracing.plans import ExampleOutline, stretch
from gristmill.text.chats.tracing.template_tracer import TemplateTracer

BODY = "<{{ m.role }}>{{ m.content }}</s>"
LOOP = "{% for m in messages %}{HERE}" + BODY + "{% endfor %}"

UNDERSTOOD = [
    "{% if loop.first %}begin{% endif %}",
    "{% if loop.last %}end{% endif %}",
    "{% if loop.index0 == 0 %}begin{% elif loop.index == 2 %}second{% endif %}",
    "{% if 1 < loop.index %}later{% endif %}{% if loop.index0 %}later{% endif %}",
    "{{ loop.index0 % 2 }}{{ 'odd' if loop.index % 2 == 1 }}",
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}",
    "{{ messages[0].role }}{{ messages[1]['role'] }}{{ messages[-1].role }}",
    "{% for part in ['a', 'b'] %}{{ part }}{{ loop.index }}{{ loop.last }}{% endfor %}",
    "{% if messages and messages is defined %}{{ m.role|upper }}{% endif %}",
    "{% macro say(x) %}({{ x if x is string else x|map('trim')|join }}){% endmacro %}{{ say(m.role) }}",
    "{% set x = m.role ~ '!' %}{{ x }}{% if m.role == 'tool' %}{% continue %}{% endif %}",
]
REFUSED = [
    *("{{ loop.length }}", "{{ loop.revindex }}", "{{ loop.revindex0 }}", "{{ loop.index }}", "{{ loop.index0 + 1 }}"),
    *("{{ loop.index0 % 3 }}", "{{ loop.index0 // 2 }}", "{{ loop.index0 == 2 }}", "{{ loop.index > 4 }}"),
    *("{{ loop.previtem.role }}", "{{ loop.nextitem.role }}", "{{ loop.cycle('a', 'b', 'c') }}"),
    *("{{ loop.changed(m.role) }}", "{{ loop['index0'] }}", "{{ loop|attr('index0') }}", "{{ [loop]|length }}"),
    *("{{ messages|length }}", "{{ messages|list|length }}", "{{ messages[2:]|length }}", "{{ messages[::2] }}"),
    *("{{ messages[-2].role }}", "{{ messages[loop.index0 - 1].role }}", "{{ messages[4].role }}"),
    *("{{ messages[3:][1].role }}", "{{ messages[:-1][0].role }}", "{{ messages == [] }}", "{{ m in messages }}"),
    *("{{ messages|map(attribute='role')|join }}", "{{ (messages|last).role }}", "{{ messages + messages }}"),
    *("{% for x in messages %}.{% endfor %}", "{% for x in loop %}{% break %}{% endfor %}"),
    *("{% set ns.n = ns.n + 1 %}{{ ns.n }}", "{% set ns.n = 1 %}", "{{ count() }}", "{{ numbers|first }}"),
    *("{% if loop.index0 in [0, 5] %}x{% endif %}", "{{ loop.index0|string }}", "{{ 'x' * loop.index0 }}"),
    *("{{ range(loop.index0)|list }}", "{{ 'abcdefghijk'[loop.index0] }}", "{{ loop.depth }}", "{{ messages|tojson }}"),
]
THREE_A_TURN = (
    "{% for a in messages %}A{{ a.content }}{% for b in loop %}B{{ b[0].content }}{% for c in loop %}"
    "C{{ c[0].content }}{% break %}{% endfor %}{% break %}{% endfor %}{% endfor %}"
)
BEFORE = {
    "ns.": "{% set ns = namespace(n=0) %}",
    "count()": "{% set ns = namespace(n=0) %}{% macro count() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}",
    "numbers": "{% set numbers = range(99)|map('string') %}",
}
"""What some of the constructs need before the loop."""


def chat(length, head=()):
    roles = [*head, *("user", "assistant") * 40][:length]
    return [{"role": role, "content": f" said {number} "} for number, role in enumerate(roles)]


def trace_blind(source, messages):
    """Return the outline of a chat that was traced without its length; None if the template wants to know it."""
    plan = TemplateTracer(source, {}, None, None).make_blind_plan(messages)
    guards = plan.split_guards(len(messages)) if plan is not None else None
    texts, stripped = _split_pieces(plan) if plan is not None else ([], [])
    if guards is None or len(stripped) != len(messages):
        return None
    example = ExampleOutline([text.encode() for text in texts], stripped, [], (len(texts) - 1, 0), [], [], guards)
    roles = [message["role"] for message in messages]
    return example if stretch(example, roles, roles) == example else None


def fill(example, messages):
    contents = [message["content"] for message in messages]
    if example.are_guards_met(contents) is None:
        return None
    contents = [text.strip() if strips else text for text, strips in zip(contents, example.stripped, strict=True)]
    pieces = [piece for pair in zip(example.texts, [*contents, ""], strict=True) for piece in pair]
    return "".join(piece.decode() if isinstance(piece, bytes) else piece for piece in pieces)


def assert_all_lengths(source, example, messages, head=()):
    """Assert that all lengths are written as Jinja writes them; return how many of them meet the guards."""
    num_filled = 0
    template = ChatTemplate(source, {})
    roles = [message["role"] for message in messages]
    for length in range(6 + len(messages) % 2, 40, 2):
        other = chat(length, head)
        stretched = stretch(example, roles, [message["role"] for message in other])
        text = fill(stretched, other)
        assert text in (None, template.render(other)), (source, length)
        num_filled += text is not None
    return num_filled


@pytest.mark.parametrize("construct", UNDERSTOOD)
def test_what_does_not_depend_on_the_length_is_written_for_any_length(construct):
    source = LOOP.replace("{HERE}", construct)
    for head in ((), ("system",)):
        messages = chat(8 + len(head), head)
        if "raise_exception" in construct and head:
            continue
        example = trace_blind(source, messages)
        assert example is not None
        assert assert_all_lengths(source, example, messages, head) == 17


@pytest.mark.parametrize("construct", REFUSED)
def test_templates_that_ask_for_more_are_traced_for_each_length(construct):
    before = "".join(statement for name, statement in BEFORE.items() if name in construct)
    assert trace_blind(before + LOOP.replace("{HERE}", construct), chat(10)) is None


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages[1:] %}" + BODY + "{% endfor %}",  # a message is not written
        "{% for m in messages if m.role %}{{ loop.index0 % 2 }}" + BODY + "{% endfor %}",
        "{% for m in messages recursive %}" + BODY + "{% endfor %}",
        "{% for m in messages %}.{% endfor %}" + LOOP.replace("{HERE}", ""),
        "{% for m in messages %}{% if add_generation_prompt %}{{ messages|length }}{% endif %}" + BODY + "{% endfor %}",
        LOOP.replace("{HERE}", "") + "{% if add_generation_prompt and messages|length > 20 %}?{% endif %}",
        "{% set all %}" + LOOP.replace("{HERE}", "") + "{% endset %}{{ all|trim }}",
        "{% set all %}" + LOOP.replace("{HERE}", "") + "{% endset %}{{ all|length }}",
        # Three messages in each turn of the outer loop.
        THREE_A_TURN,
    ],
)
def test_templates_whose_turns_are_not_alike_are_traced_for_each_length(source):
    assert trace_blind(source, chat(12)) is None


def test_a_first_message_that_is_written_elsewhere():
    source = (
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
        "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}"
        "{% if loop.first %}[{{ system }}]{% endif %}" + BODY.replace("m.content", "m.content|trim") + "{% endfor %}"
    )
    messages = chat(9, ("system",))
    example = trace_blind(source, messages)
    assert assert_all_lengths(source, example, messages, ("system",)) == 17


def test_questions_about_contents_are_asked_of_each():
    source = LOOP.replace("{HERE}", "{% if 'said 30' in m.content %}!{% endif %}{{ m.content|length > 99 }}")
    messages = chat(8)
    example = trace_blind(source, messages)
    assert assert_all_lengths(source, example, messages) == 13, "message 30 is only in the longest four"
    messages[6]["content"] = "she said 30"
    assert trace_blind(source, messages) is None, "not all messages give the same answer"
    assert trace_blind(LOOP.replace("{HERE}", "{{ m.content == messages[0].content }}"), chat(8)) is None


def make_template(rng):
    """Write a loop that writes each message once, and other things around it, of which many know the length."""

    def statements():
        known = [*UNDERSTOOD, "{{ m.role }}", "-", "{{ m.content|trim }}", "{% if '2' in m.content %}2{% endif %}"]
        return "".join(rng.choice(known if rng.random() < 0.85 else REFUSED) for _ in range(rng.randint(0, 3)))

    before = rng.choice(list(BEFORE.values())) if rng.random() < 0.2 else ""
    start = rng.choice(["", "", "1:", "2:", ":-1", "-4:"])
    content = rng.choice(["m.content", "m['content']", "m.content|trim", "m.get('content').strip()"])
    end = rng.choice(["", "{{ messages[-1].role }}", "{{ ns.n }}", "{% if add_generation_prompt %}?{% endif %}"])
    return (
        f"{before}{'{{ messages[0].content }}' if start == '1:' else ''}"
        f"{{% for m in messages{f'[{start}]' if start else ''} %}}{statements()}|{{{{ {content} }}}}|{statements()}"
        f"{{% endfor %}}{end}"
    )


@pytest.mark.parametrize("first_seed", range(0, 300, 150))
def test_generated_templates_write_the_same_at_any_length(first_seed):
    num_stretched = 0
    for seed in range(first_seed, first_seed + 150):
        source = make_template(random.Random(seed))
        messages = chat(8 + seed % 4)
        try:
            ChatTemplate(source, {}).render(messages)
        except TemplateError:
            continue
        example = trace_blind(source, messages)
        if example is not None:
            num_stretched += assert_all_lengths(source, example, messages) > 0
    assert num_stretched > 15
