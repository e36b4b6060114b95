"""What templates may do with opaque texts: each construct is understood and exact, or gives up; none reads them."""

import pytest

from gristmill.text.chats.templates import ChatTemplate, TemplateError
from gristmill.text.chats.tracing.template_tracer import TemplateTracer

CONTENTS = [
    "hello",
    "ell",
    "",
    " padded\n",
    "<think>\nhm\n</think>\n\nyes",
    "12",
    "a-b-c",
    "HELLO",
    "é",
    '"quoted" \\ \n',
    "zq7hole0.",
    "abc" * 40,
]
# `c` is a content, `m` its message, `messages` all of them, `o` the content of the other message.
UNDERSTOOD = [
    "c",
    "c + '!'",
    "'>' + c + o",
    "c ~ 1 ~ o",
    "c|trim",
    "c.strip()",
    "c.strip('\\n')",
    "c.lstrip() + c.rstrip()",
    "c.replace('l', 'L')",
    "c|replace('l', 'L')",
    "c|upper",
    "c.lower().title()",
    "c|length",
    "'long' if c|length > 5 else 'short'",
    "'none' if c|length == 0 else 'some'",
    "'yes' if c else 'no'",
    "'yes' if not c else 'no'",
    "'yes' if 'ell' in c else 'no'",
    "'yes' if 'ell' not in c else 'no'",
    "'yes' if c in 'hello' else 'no'",
    "'yes' if c in ['hello', 'ell'] else 'no'",
    "'yes' if c == 'hello' else 'no'",
    "'yes' if c != o else 'no'",
    "'yes' if c.startswith('<think>') else 'no'",
    "'yes' if c.startswith(('a', '<')) and c.endswith('c') else 'no'",
    "c.split('</think>')[-1]",
    "c.split('</think>')[0].strip()",
    "c.split('-')[1]",
    "(c.split('-')|last) ~ (c.split('-')|first)",
    "c.split('-')|length",
    "c.split('-')|join('+')",
    "c[1:3]",
    "c[:-1]",
    "c[0]",
    "c.partition('-')[2]",
    "c.find('l')",
    "c is string",
    "c is mapping",
    "c is iterable",
    "c is none",
    "c is defined",
    "c is sameas(none) if c is none else 'x'",
    "c|tojson",
    "c|tojson(ensure_ascii=true)",
    "m|tojson",
    "m|tojson(indent=2)",
    "messages|tojson(sort_keys=true)",
    "{'key': [c, 1, none]}|tojson",
    "[c, o]|join(', ')",
    "', '.join([c, 'x'])",
    "messages|map(attribute='content')|join('|')",
    "messages|map(attribute='content')|map('trim')|join('|')",
    "messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join",
    "(messages|selectattr('content')|list)|length",
    "c|default('x', true)",
    "c|default('x')",
    "m.content|string",
    "m['content'] ~ m.get('content') ~ m.get('other', 'x')",
    "'content' in m",
    "c.text is defined",
    "c['text'] is defined",
    "(c, o)[1]",
    "([c] + [o])|last",
    "c.isspace()",
]
REFUSED = [
    "'abc'.startswith(c)",
    "'hello'.find(c)",
    "'a-b'.split(c)",
    "'hello'.strip(c)",
    "'hello'.replace('l', c)",
    "'hello'.replace(c, 'x')",
    "'%s' % c",
    "'abc' % c",
    "'{}'.format(c)",
    "'{0[content]}'.format(m)",
    "c * 2",
    "c % 1",
    "c|int",
    "c|float",
    "c|list|length",
    "c|first",
    "c|reverse",
    "c|e",
    "c|safe",
    "c|urlencode",
    "c|indent",
    "c|wordcount",
    "c|center(20)",
    "c|capitalize ~ (c|title)",
    "c|format(1)",
    "c|pprint",
    "messages|groupby('content')|list|length",
    "messages|unique(attribute='content')|list|length",
    "(messages|sort(attribute='content')|first).role",
    "messages|map(attribute='content')|sort|join",
    "messages|map(attribute='content')|max",
    "{c: 1}|length",
    "{'hello': 1}[c]",
    "{'hello': 1}.get(c)",
    "c in {'hello': 1}",
    "c > 'a'",
    "c <= 'b'",
    "c is sameas c",
    "c is lower",
    "c is escaped",
    "c is in('hello')",
    "c is eq('hello')",
    "m",
    "m.items()|list",
    "messages|string",
    "range(c|length)|list",
    "c.format(1)",
    "c.encode()",
    "c.join(['a', 'b'])",
    "c.zfill(9)",
    "c.__class__",
    "c.recording",
    "c.number",
    "c['call']",
    "(m|attr('content'))",
    "messages[c|length]",
    "'ab'[c|length:]",
    "'x' * (c|length)",
    "(c|length) + 1",
    "-(c|length)",
    "dict([(c, 1)])",
    "namespace(**m).content",
    "dict(**m).content",
    "m == messages[0]",
    "m == {'role': 'user', 'content': 'hello'}",
    "{'role': 'user', 'content': 'hello'} in messages",
    "m in messages",
    "messages == messages[:]",
    "c.split()|sort|join",
    "lipsum()",
    "[1, 2, 3]|random",
    "cycler('a', 'b').next()",
    "c.split('-')",
    "c.title",
    "loop.changed(c)",
    "c.startswith(o)",
    "c.count('l') + 1",
    "messages|batch(1)|list|length",
    "messages|sum(attribute='content')",
    "messages|map('length')|sum",
    "[c, o]|min",
    "c|xmlattr",
    "m|xmlattr",
    "m|dictsort",
    "m|items|list",
    "(m|list)[0]",
    "c is divisibleby 2",
    "c|round",
    "c|abs",
    "c|filesizeformat",
    "c|truncate(5)",
    "c|striptags",
    "c|wordwrap(3)",
    "c|slice(2)|list",
    "c|map('upper')|join",
    "c|select|list|length",
]
STATEMENTS = [
    "{% for x in c %}{{ x }}{% endfor %}",
    "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in m %}{{ k }};{% endfor %}",
    "{% set a, b = m %}{{ a }}",
    "{% set a, b = c %}{{ a }}",
    "{% for part in c.split('-') %}[{{ part }}/{{ loop.length }}]{% endfor %}",
    "{% set x %}<{{ c }}>{% endset %}{{ x|trim }}{{ x|length }}",
    "{% macro f(x, y='d') %}{{ x|upper }}{{ y }}{% endmacro %}{{ f(c) }}{{ f(o, y=c) }}",
    "{% macro f() %}({{ caller(c) }}){% endmacro %}{% call(x) f() %}{{ x }}!{% endcall %}",
    "{% filter upper %}{{ c }}x{% endfilter %}",
    "{% filter length %}{{ c }}{% endfilter %}",
    "{% set ns = namespace(x=c, n=0) %}{% for y in messages %}{% set ns.x = ns.x ~ y.content %}{% endfor %}{{ ns.x }}",
    "{% if c and 'ell' in c or not o %}A{% elif c == o %}B{% else %}C{% endif %}",
    "{% if 1 < c|length < 6 %}mid{% endif %}",
    "{% if c|length >= 3 and 3 <= c|length %}ok{% endif %}",
    "{% for x in messages if x.content %}{{ loop.index }}{% endfor %}",
    "{% for x in messages recursive %}{{ x.content }}{% endfor %}",
    "{% with x = c.strip() %}{{ x }}{{ 'e' in x }}{% endwith %}",
    "{% set f = c.strip %}{{ f() }}",
    "{% autoescape true %}{{ c }}{% endautoescape %}",
    "{% if c is string %}S{% endif %}{% if m is mapping %}M{% endif %}{% if messages is sequence %}L{% endif %}",
    "{{ raise_exception('no') if 'ell' in c else c }}",
    "{{ m.content if m.content is string else m.content[0].text }}",
    "{% generation %}{{ c }}{% endgeneration %}",
    "{% if c %}{% break %}{% endif %}{{ c }}",
]


def make_tracer(source, **variables):
    """A tracer that traces everything."""
    return TemplateTracer(source, variables, None, None, min_occurrences=1, num_compared=0)


def conversations():
    for first in CONTENTS:
        for second in (CONTENTS[0], CONTENTS[1], first):
            yield [{"role": "user", "content": first}, {"role": "assistant", "content": second}]


def trace_all(source):
    """Render all conversations with plans and with Jinja; returns how many a plan has rendered."""
    template = ChatTemplate(source, {"eos_token": "</s>"})
    tracer = make_tracer(source, eos_token="</s>")
    num_traced, orderless_plans = 0, []
    for messages in conversations():
        text = tracer.render(messages, None, {}, lambda: pytest.fail("not asked for"))
        orderless_text = fill_orderless(tracer, orderless_plans, messages)
        try:
            expected = template.render(messages)
        except TemplateError:
            assert text is orderless_text is None, "a plan wrote what Jinja refuses"
            continue
        assert text in (None, expected)
        assert orderless_text in (None, expected)
        num_traced += text is not None
    return num_traced


def fill_orderless(tracer, plans, messages):
    """Fill in the first plan that fits, of those for messages whose keys have no order."""
    texts = [message["content"] for message in messages]
    for plan in plans:
        if (pieces := plan.fill(texts)) is not None:
            return "".join(pieces)
    plan = tracer.make_plan(messages)
    if plan is None:
        return None
    plans.append(plan)
    return "".join(plan.fill(texts))


def put_into_loop(body):
    return (
        "{% for m in messages %}{% set c = m.content %}{% set o = messages[-1 - loop.index0].content %}"
        f"[{body}]{{% endfor %}}"
    )


@pytest.mark.parametrize("expression", UNDERSTOOD)
def test_what_is_understood_is_exact(expression):
    assert trace_all(put_into_loop(f"{{{{ {expression} }}}}")) > 0


@pytest.mark.parametrize("expression", REFUSED)
def test_nothing_reads_an_opaque_text(expression):
    trace_all(put_into_loop(f"{{{{ {expression} }}}}"))
    trace_all(put_into_loop(f"{{% if {expression} %}}yes{{% else %}}no{{% endif %}}"))


@pytest.mark.parametrize("body", STATEMENTS)
def test_statements(body):
    trace_all(put_into_loop(body))


def test_tools_reasoning_and_calls_are_opaque_leaves():
    source = (
        "{% for t in tools %}{{ t|tojson(indent=1) }}{% if t.function.name == 'a' %}!{% endif %}{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}{{ m.reasoning_content|trim }}</t>{% endif %}"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.type }}{{ p.text }}"
        "{% endfor %}{% endif %}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
        "{{ call.function.arguments|tojson }}{% for k, v in call.function.arguments|items %}{{ k }}={{ v }}{% endfor %}"
        "{% endfor %}{% endfor %}"
    )
    template, tracer = ChatTemplate(source, {}), make_tracer(source)
    num_traced = 0
    for number in range(6):
        name = "ab"[number % 2]
        tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "n": number % 3}}}]
        call = {"type": "function", "function": {"name": name, "arguments": {"place": f"p{number}", "on": True}}}
        messages = [
            {"role": "user", "content": [{"type": "text", "text": f"q{number}"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": f" why {number} "},
            {"role": "tool", "content": f'{{"r": "{number}"}}'},
        ]
        text = tracer.render(messages, tools, {}, lambda: pytest.fail("not asked for"))
        assert text in (None, template.render(messages, tools))
        num_traced += text is not None
    assert num_traced == 6


def test_the_order_of_keys_is_part_of_an_outline():
    source = "{% for m in messages %}{% for k in m %}{{ k }}{% endfor %}{% endfor %}"
    template, tracer = ChatTemplate(source, {}), make_tracer(source)
    for message in ({"role": "user", "content": "a"}, {"content": "a", "role": "user"}):
        assert tracer.render([message], None, {}, str) == template.render([message])
    assert tracer.make_plan([{"role": "user", "content": "a"}]) is None
